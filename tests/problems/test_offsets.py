"""Offsets in hostile texts: what stands between them is what was meant, whatever the text holds.

A row of KINDS builds, for a text, logits that mean some places of it, and takes them through
encoding, response and client; another kind that returns offsets joins by a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertender.core.errors import DataError
from bertender.problems.problem import Problem
from bertender.problems.question_answering import QUESTION_ANSWERING
from bertender.problems.token_classification import TOKEN_CLASSIFICATION, WORD_MARK
from bertender.text.batch import NO_WORD, TokenizeWords
from bertender.text.windows import NO_ANSWER, TokenizeContextWindows, span_of
from serve.client.endpoint import Classification, TextSpan
from serve.wire import from_arrays, to_arrays
from tests.text.test_words import TOKENIZERS, in_parts
from tests.toy_heads import JOINT
from tests.toys import byte_level_tokenizer, tiny_tokenizer

WITH_FIRST_TOKEN = {"word pieces": tiny_tokenizer(), "byte level": byte_level_tokenizer()}
LABELS = ("O", "B-x", "I-x")


class Answer(NamedTuple):
    """The spans that a client gets of a text, and the places that were meant."""

    spans: Sequence[TextSpan]
    meant: Sequence[tuple[int, int]]


Draw = Callable[[int], int]
"""A number below another one."""


def answer_of_tagger(text: str, draw: Draw, tokenizer: str, reads_parts: bool) -> Answer:
    """Runs of words are meant, from the first to the last that the tokenizer does not drop."""
    problem = TOKEN_CLASSIFICATION
    ((sent,),) = from_arrays(to_arrays([(text,)], 1))
    words = problem.to_example((sent,))
    own = in_parts(TOKENIZERS[tokenizer]) if reads_parts else TOKENIZERS[tokenizer]
    batch = TokenizeWords(own, 10**4)([words])
    assert batch.words is not None
    (begun,) = batch.words
    runs, word = [], draw(2)
    while word < len(words):
        size = 1 + draw(3)
        runs.append(range(word, min(word + size, len(words))))
        word += size + draw(3)
    tags, meant, current = np.zeros(len(begun), dtype=np.int64), [], NO_WORD
    starts = word_starts(words, sent)
    seen = set(begun.tolist())
    for run in runs:
        visible = [word for word in run if word in seen]
        if visible:
            meant.append((starts[visible[0]], starts[visible[-1]] + len(words[visible[-1]])))
        for token, word in enumerate(begun.tolist()):
            current = word if word != NO_WORD else current
            later = batch.parts is not None and batch.parts[0, token] > 0
            if current in visible and (word == current or later):
                begins = word == visible[0] and not later
                tags[token] = LABELS.index("B-x" if begins else "I-x")
        if (
            visible and batch.parts is not None and draw(2)
        ):  # all but the last part of the last word
            last = max(np.flatnonzero(np.maximum.accumulate(begun) == visible[-1]).tolist())
            while last and not batch.parts[0, last] and begun[last] == NO_WORD:
                last -= 1
            if offset := int(batch.parts[0, last]):
                tags[last] = 0
                meant[-1] = meant[-1][0], starts[visible[-1]] + offset
    (outputs,) = problem.outputs(9 * np.eye(3, dtype=np.float32)[tags][None], batch)
    names = np.array([label.encode() for label in LABELS], np.object_)
    tensors = problem.response([outputs], [words], names, [(sent,)])
    found = Classification(**problem.read_response(tensors, 0, words))
    assert found.spans is not None
    return Answer(found.spans, meant)


def word_starts(words: Sequence[str], text: str) -> list[int]:
    """Counted on the text alone: a word begins where white space ends."""
    if text.startswith(WORD_MARK):
        return [sum(map(len, words[:number])) + number for number in range(len(words))]
    return [
        place
        for place, character in enumerate(text)
        if not character.isspace() and (place == 0 or text[place - 1].isspace())
    ]


def answer_of_context(text: str, draw: Draw, tokenizer: str) -> Answer:
    """The characters of some tokens are meant, without white space around them."""
    problem = QUESTION_ANSWERING
    sent = from_arrays(to_arrays([("which", text)], 2))
    batch = TokenizeContextWindows(WITH_FIRST_TOKEN[tokenizer], 24)(sent)
    assert batch.words is not None
    places = batch.words[draw(len(batch.words))]
    inside = np.flatnonzero(places > NO_ANSWER).tolist()
    if not inside:
        return Answer((), ())
    first = draw(len(inside))
    tokens = inside[first : first + 1 + draw(3)]
    logits = np.full((*batch.words.shape, 2), -9, dtype=np.float32)
    row = [*map(tuple, batch.words.tolist())].index(tuple(places.tolist()))
    logits[row, tokens[0], 0] = logits[row, tokens[-1], 1] = 9
    outputs = problem.outputs(logits, batch)
    names = np.array([b"start", b"end"], np.object_)
    tensors = problem.response(outputs, sent, names, sent)
    found = Classification(**problem.read_response(tensors, 0, sent[0]))
    start, end = span_of(int(places[tokens[0]]))[0], span_of(int(places[tokens[-1]]))[1]
    own = text[start:end]
    meant = start + len(own) - len(own.lstrip()), start + len(own.rstrip())
    assert found.spans is not None and found.label == own.strip()
    return Answer(found.spans, (meant,))


KINDS: dict[str, Callable[[str, Draw], Answer]] = {
    **{
        f"answers, {tokenizer}": (partial(answer_of_context, tokenizer=tokenizer))
        for tokenizer in WITH_FIRST_TOKEN
    },
    **{
        f"tags, {tokenizer}, {'in parts' if parts else 'whole words'}": (
            partial(answer_of_tagger, tokenizer=tokenizer, reads_parts=parts)
        )
        for tokenizer in TOKENIZERS
        for parts in (True, False)
    },
}

PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            *("Paris,", "U.S.", "(a-b)", "'s", "10,000.50", "…", "İstanbul", "ﬁn", "Ǆ"),
            *("👩\u200d👩\u200d👧", "🦆", "👍🏽", "🏳️\u200d🌈", "🇫🇷", "1\ufe0f\u20e3"),
            *("שלום,", "مرحبا", "\u202eabc\u202c", "عـربي", "हिन्दी।", "e\u0301\u0327", "\u0301"),
            *("\u200b", "\u200d", "\ufeff", "\u2060", "\x01", "\u00ad", "日本語", "x" * 300),
        ]
    ),
)
SPACES = st.sampled_from([" ", "  ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\x85"])
TEXTS = st.lists(st.one_of(PIECES, SPACES), max_size=12).map("".join)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@example(text="", numbers=[])
@example(text=" \u2003\t\u200b", numbers=[])
@example(text="\u0301", numbers=[])
@example(text="a\0b", numbers=[])
@example(text="\x1fNew\u00a0York,\x1fis", numbers=[0, 1])
@given(text=TEXTS, numbers=st.lists(st.integers(0, 5)))
def test_the_text_at_the_offsets_is_the_text_that_was_meant(
    kind: str, text: str, numbers: list[int]
) -> None:
    drawn = iter(numbers)
    try:
        to_arrays([(text,)], 1)
    except DataError as refused:
        assert any(reason in str(refused) for reason in ("is empty", "a NUL"))
        return
    assert "\0" not in text
    spans, meant = KINDS[kind](text, lambda below: next(drawn, 0) % below)
    marked = text.startswith(WORD_MARK) and kind.startswith("tags")
    shown = text[1:].replace(WORD_MARK, " ") if marked else text
    assert [(span.start, span.end) for span in spans] == [*meant]
    for span in spans:
        assert span.text == shown[span.start : span.end] and span.text


@pytest.mark.parametrize("problem", [TOKEN_CLASSIFICATION, QUESTION_ANSWERING, JOINT.problem])
def test_texts_of_files_are_read_unchanged(problem: Problem[Any]) -> None:
    """A caller finds spans in the cell, with its white space."""
    assert problem.text_of_cell({"text": "  a \t b "}, "text") == "  a \t b "
