"""Rows of full sentences: whole ones, marked borders, no token lost, and never too long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from distill.pretraining import rows as corpus_sentences
from distill.pretraining.config import DOC_SENTENCES, OBJECTIVES, TOKENIZERS, PretrainConfig
from distill.pretraining.corpus import survey
from distill.pretraining.languages import Language
from distill.pretraining.pretrain import TRAINING_MODULES, warn_of_single_document
from distill.pretraining.rows import (
    CONSECUTIVE_PASSAGES,
    full_sentence_rows,
    part_of,
    split_sentences,
    tokenised_sentences,
)
from distill.pretraining.vocabularies import train_tokenizer
from tests.toys import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
PAIRS = {name for name, row in OBJECTIVES.items() if row.pairs}
"""Objectives on pairs of segments."""
SEP, CLS = TOKENIZER.sep_token_id, TOKENIZER.cls_token_id

SENTENCES = ("apple pear plum.", "saw!", "hammer drill saw wrench apple?", "melon " * 9 + "pear.")
TEXT = "A first one... Is it? Yes!  The\tlast, e.g. 3.14 of it"

passages_of = st.lists(
    st.one_of(
        st.just(""), st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=4).map(" ".join)
    ),
    max_size=25,
)


def rows_of(passages: list[str], length: int) -> list[list[int]]:
    return [list(row["input_ids"]) for row in full_sentence_rows(passages, TOKENIZER, length)]


def ids_of(text: str) -> list[int]:
    ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return ids


def documents_of(passages: list[str]) -> list[list[str]]:
    """The sentences of each document that has some."""
    documents: list[list[str]] = [[]]
    for passage in passages:
        if passage:
            documents[-1] += split_sentences(passage)
        else:
            documents.append([])
    return [document for document in documents if document]


def test_a_row_by_hand() -> None:
    """Sentences of 4 and 2 tokens; the border takes one, and the row's own frame two."""
    passages = ["apple pear plum. saw!", "saw!", "", "saw! saw!", ""]
    plum, saw = ids_of("apple pear plum."), ids_of("saw!")
    assert (len(plum), len(saw)) == (4, 2)
    assert rows_of(passages, 13) == [[CLS, *plum, *saw, *saw, SEP, *saw, SEP], [CLS, *saw, SEP]]
    assert rows_of(passages, 12) == [[CLS, *plum, *saw, *saw, SEP], [CLS, *saw, *saw, SEP]]
    assert rows_of(passages, 8) == [
        [CLS, *plum, *saw, SEP],
        [CLS, *saw, SEP, *saw, SEP],
        [CLS, *saw, SEP],
    ]


def test_a_row_ends_with_its_document_by_hand() -> None:
    passages = ["apple pear plum. saw!", "saw!", "", "saw! saw!", ""]
    plum, saw = ids_of("apple pear plum."), ids_of("saw!")
    rows = full_sentence_rows(passages, TOKENIZER, 13, DOC_SENTENCES)
    assert [row["input_ids"] for row in rows] == [
        [CLS, *plum, *saw, *saw, SEP],
        [CLS, *saw, *saw, SEP],
    ]


@pytest.mark.parametrize(
    ("passages", "packing", "warned"),
    [
        (["a", "b", ""], DOC_SENTENCES, True),
        (["a", "", "b", ""], DOC_SENTENCES, False),
        (["a", "b", ""], "full-sentences", False),
    ],
)
def test_a_corpus_without_documents_is_said(
    passages: list[str], packing: Any, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    whole = Language("", passages, survey(passages))
    warn_of_single_document([whole], PretrainConfig(packing=packing))
    assert ["one document" in line for line in caplog.messages] == [True] * warned


@settings(max_examples=80)
@given(passages=passages_of, length=st.integers(3, 60))
def test_rows_of_any_corpus(passages: list[str], length: int) -> None:
    room, documents = length - 2, documents_of(passages)
    rows = rows_of(passages, length)
    assert all(len(row) <= length and row[0] == CLS and row[-1] == SEP for row in rows)

    there = [token for row in rows for token in row[1:-1] if token != SEP]
    assert there == [token for document in documents for text in document for token in ids_of(text)]

    parts = _parts(documents, room)
    borders = 0
    for row in rows:  # each is made of whole sentences, or of parts of those that are too long
        body = row[1:-1]
        while body:
            document, part = next(parts)
            assert body[: len(part)] == part
            body = body[len(part) :]
            if body[:1] == [SEP]:
                borders += 1
                body = body[1:]
                assert _peeked(parts)[0] != document
            elif body:
                assert _peeked(parts)[0] == document
    assert borders == sum(row[1:-1].count(SEP) for row in rows) <= max(len(documents) - 1, 0)


class _Parts(Iterator[tuple[int, list[int]]]):
    """What must not be cut, each with its document; the next can be looked at."""

    def __init__(self, parts: list[tuple[int, list[int]]]) -> None:
        self.parts = parts

    def __next__(self) -> tuple[int, list[int]]:
        return self.parts.pop(0)


def _parts(documents: list[list[str]], room: int) -> _Parts:
    return _Parts(
        [
            (number, ids_of(text)[begin : begin + room])
            for number, document in enumerate(documents)
            for text in document
            for begin in range(0, len(ids_of(text)), room)
        ]
    )


def _peeked(parts: _Parts) -> tuple[int, list[int]]:
    return parts.parts[0]


@given(passages=passages_of, length=st.integers(12, 60))
def test_rows_are_filled_while_sentences_fit(passages: list[str], length: int) -> None:
    rows = rows_of(passages, length)
    firsts = [row[1 : 1 + _first_sentence(row)] for row in rows[1:]]
    for row, following in zip(rows, firsts, strict=False):
        assert len(row) + len(following) + 1 > length  # 1 for a border


def _first_sentence(row: list[int]) -> int:
    """Return how many tokens stand before the end of a row's first sentence."""
    ends = {*ids_of("."), *ids_of("!"), *ids_of("?")}
    return next((place for place, token in enumerate(row[1:], 1) if token in ends), len(row) - 2)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_sentences_have_the_tokens_of_their_passage(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the tokenizer makes of white space."""
    tokenizer: PreTrainedTokenizerBase = train_tokenizer(name, [TEXT] * 50, 300, 64)
    monkeypatch.setattr(corpus_sentences, "PASSAGES_AT_ONCE", 1)
    found = list(tokenised_sentences([TEXT, TEXT, "", TEXT], tokenizer, 100))
    assert [document for document, _ in found] == [0] * 10 + [1] * 5
    whole = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    assert [token for _, ids in found for token in ids] == 3 * whole


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_space_behind_a_passage_ends_no_document(name: str) -> None:
    tokenizer = train_tokenizer(name, [TEXT] * 50, 300, 64)
    found = tokenised_sentences(["A first one. ", "Is it?", "", "Yes!"], tokenizer, 100)
    assert [*dict(found)] == [0, 1]


def test_where_sentences_end() -> None:
    ends = ["A first one...", " Is it?", " Yes!", "  The\tlast, e.g.", " 3.14 of it"]
    assert split_sentences(TEXT) == ends
    assert split_sentences("एक। दो।") == ["एक।", " दो।"]
    assert split_sentences("") == [""]


def test_objectives_without_pairs_train_on_full_sentences() -> None:
    whole = [*full_sentence_rows([TEXT, ""], TOKENIZER, 32)]
    for name in OBJECTIVES.keys() - PAIRS:
        assert [*TRAINING_MODULES[name].rows([TEXT, ""], TOKENIZER, 32, 0)] == whole


def test_held_out_rows_are_like_the_others() -> None:
    """Passages that are held out one by one would each be a document: a row full of borders."""
    passages = [f"{word} and {word}." for word in ("apple", "saw", "plum") for _ in range(300)]
    for name, kind in TRAINING_MODULES.items():
        rows, borders = 0, 0
        parts = part_of(passages, held_out=True, run=CONSECUTIVE_PASSAGES)
        for row in kind.rows(parts, TOKENIZER, 32, 0):
            ids = list(row["input_ids"])  # type: ignore[arg-type]
            rows, borders = rows + 1, borders + ids[1:-1].count(SEP)
        assert rows > 2
        if name not in PAIRS:
            assert borders <= 2  # of three runs
