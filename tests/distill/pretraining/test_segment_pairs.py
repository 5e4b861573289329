"""Pairs of segments: framed, filled, labelled truly, from a stream."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from random import Random
from typing import Any

import pytest
from transformers import BertTokenizerFast

from distill.pretraining import rows as sentences
from distill.pretraining import segment_pairs
from distill.pretraining.segment_pairs import (
    NEXT_SENTENCE,
    SENTENCE_ORDER,
    SENTENCE_STRUCTURE,
    NextSentence,
    SentenceOrder,
    StructuredPairs,
)
from tests.toys import tiny_tokenizer

BUILDERS: dict[str, tuple[Any, str]] = {
    "next sentence": (NextSentence.rows, NEXT_SENTENCE),
    "sentence order": (SentenceOrder.rows, SENTENCE_ORDER),
    "sentence structure": (StructuredPairs.rows, SENTENCE_STRUCTURE),
}
LENGTH = 32
TOKENIZER = tiny_tokenizer()


def counting(documents: int, sentences: int) -> Iterator[str]:
    """Documents of consecutive numbers, four a sentence, so that what follows what can be seen."""
    for document in range(documents):
        for sentence in range(sentences):
            first = 1000 * document + 4 * sentence
            yield " ".join(str(first + word) for word in range(4))
        yield ""


class Numbers:
    """A tokenizer that turns each number into itself, behind the special tokens."""

    cls_token_id, sep_token_id, pad_token_id = 1, 2, 0

    def __call__(self, texts: list[str], **settings: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [[int(word) + 10 for word in text.split()] for text in texts]}


def rows_of(kind: str, passages: Iterable[str], seed: int = 0, length: int = LENGTH) -> list[Any]:
    return list(BUILDERS[kind][0](passages, Numbers(), length, seed))  # type: ignore[arg-type]


def segments(row: Any) -> tuple[list[int], list[int]]:
    """A and B of a row, as numbers."""
    ids = row["input_ids"]
    second = ids.index(Numbers.sep_token_id) + 1
    return [i - 10 for i in ids[1 : second - 1]], [i - 10 for i in ids[second:-1]]


def consecutive(numbers: list[int]) -> bool:
    return all(after == before + 1 for before, after in itertools.pairwise(numbers))


@pytest.mark.parametrize("kind", BUILDERS)
def test_rows_are_framed_as_bert_frames_pairs(kind: str) -> None:
    for row in rows_of(kind, counting(20, 12)):
        ids, types = row["input_ids"], row["token_type_ids"]
        second = ids.index(Numbers.sep_token_id) + 1
        assert ids[0] == Numbers.cls_token_id and ids[-1] == Numbers.sep_token_id
        assert ids.count(Numbers.sep_token_id) == 2 and len(ids) <= LENGTH
        assert types == [0] * second + [1] * (len(ids) - second)
        assert row["attention_mask"] == [1] * len(ids)
        assert 2 < second < len(ids) - 1


@pytest.mark.parametrize("kind", BUILDERS)
def test_rows_have_each_label_alike(kind: str) -> None:
    labels = [row[BUILDERS[kind][1]] for row in rows_of(kind, counting(400, 24))]
    classes = 3 if kind == "sentence structure" else 2
    assert len(labels) > 1000 and set(labels) == set(range(classes))
    share = 1 / classes
    for label in range(classes):
        off = labels.count(label) / len(labels) - share
        assert abs(off) < 4 * (share * (1 - share) / len(labels)) ** 0.5


def test_segments_of_structure_follow_precede_or_are_of_elsewhere() -> None:
    for row in rows_of("sentence structure", counting(50, 24)):
        first, second = segments(row)
        assert consecutive(first) and consecutive(second)
        same = first[0] // 1000 == second[0] // 1000
        if row[SENTENCE_STRUCTURE] == 0:
            assert same and 1 <= second[0] - first[-1] <= 8
        elif row[SENTENCE_STRUCTURE] == 1:
            assert same and 1 <= first[0] - second[-1] <= 8
        else:
            assert not same or first[0] < 1000


def test_true_next_sentences_follow_and_others_come_from_elsewhere() -> None:
    for row in rows_of("next sentence", counting(50, 24)):
        first, second = segments(row)
        assert consecutive(first) and consecutive(second)
        gap, same = second[0] - first[-1], first[0] // 1000 == second[0] // 1000
        if row[NEXT_SENTENCE] == 0:
            # less than a sentence may be cut from either side of the seam
            assert same and 1 <= gap <= 8
        else:
            assert not same or first[0] < 1000  # before the second document there is no other


def test_swapped_segments_are_swapped() -> None:
    for row in rows_of("sentence order", counting(50, 24)):
        first, second = segments(row)
        before, after = (second, first) if row[SENTENCE_ORDER] else (first, second)
        assert consecutive(first) and consecutive(second)
        assert before[0] // 1000 == after[0] // 1000 and before[-1] < after[0]


def test_of_one_document_other_segments_come_from_before() -> None:
    passages = (" ".join(str(4 * s + w) for w in range(4)) for s in range(500))
    rows = rows_of("next sentence", passages)
    others = [segments(row) for row in rows if row[NEXT_SENTENCE]]
    assert len(others) > 20
    assert all(second[-1] < first[0] for first, second in others)


def test_what_another_segment_displaces_is_read_again() -> None:
    """Every sentence stands in some first segment or true second one."""
    seen: set[int] = set()
    for row in rows_of("next sentence", counting(30, 40), length=64):
        first, second = segments(row)
        seen.update(first if row[NEXT_SENTENCE] else [*first, *second])
    read = {int(word) for text in counting(30, 40) for word in text.split()}
    assert len(seen) > 0.85 * len(read)  # the rest is cut off at the ends of rows


@pytest.mark.parametrize("kind", BUILDERS)
def test_nine_of_ten_rows_are_full(kind: str) -> None:
    lengths = [len(row["input_ids"]) for row in rows_of(kind, counting(5, 2000))]
    full = sum(length == LENGTH for length in lengths) / len(lengths)
    # a short row may be drawn as long as a full one
    assert abs(full - 0.9) < 4 * (0.09 / len(lengths)) ** 0.5 + 0.1 / 28
    assert min(lengths) == 5


@pytest.mark.parametrize("kind", BUILDERS)
def test_a_sentence_without_company_is_divided(kind: str) -> None:
    (row,) = rows_of(kind, ["1 2 3 4 5", "", "7", ""])  # seed 0 draws no short row
    assert sorted(segments(row)) == [[1, 2], [3, 4, 5]]


def test_the_length_of_a_row_does_not_tell_its_label() -> None:
    """Documents end where they end; what displaces their end is as long."""
    rows = rows_of("next sentence", counting(3000, 3), length=64)
    lengths = [[len(r["input_ids"]) for r in rows if r[NEXT_SENTENCE] == side] for side in (0, 1)]
    true, other = (sum(side) / len(side) for side in lengths)
    assert max(map(max, lengths)) == 3 + 12
    assert abs(true - other) < 0.5


@pytest.mark.parametrize("most", [4, 60])
def test_lengths_and_borders_of_segments_do_not_tell_their_label(most: int) -> None:
    """Sentences begin with a 1. As many others begin with one as true ones, and are as long."""
    draw = Random(0)

    def document() -> list[str]:
        lengths = (max(3, int(draw.lognormvariate(2.9, 0.5))) for _ in range(draw.randint(1, most)))
        return [*("1" + " 7" * (length - 1) for length in lengths), ""]

    passages = [text for _ in range(30_000 // most) for text in document()]
    rows = rows_of("next sentence", passages, length=128)
    true, other = (
        [segments(row) for row in rows if row[NEXT_SENTENCE] == label] for label in (0, 1)
    )
    begins = [sum(second[0] == 1 for _, second in pairs) / len(pairs) for pairs in (true, other)]
    longer = [sum(len(a) > len(b) for a, b in pairs) / len(pairs) for pairs in (true, other)]
    assert abs(begins[0] - begins[1]) < 0.1
    assert abs(longer[0] - longer[1]) < 0.1


def test_sentences_of_a_passage_are_cut_at_their_ends() -> None:
    """A passage of two sentences, on its own, is divided between them."""
    rows = list(
        SentenceOrder.rows(["apple pear. saw drill!", ""], TOKENIZER, LENGTH, 3)  # not a short row
    )
    text = BertTokenizerFast.decode(TOKENIZER, rows[0]["input_ids"])
    first, second = text.removeprefix("[CLS] ").removesuffix(" [SEP]").split(" [SEP] ")
    assert sorted([first, second]) == ["apple pear [UNK]", "saw drill [UNK]"]


@pytest.mark.parametrize("kind", BUILDERS)
def test_rows_come_as_the_corpus_is_read(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless corpus gives rows, and no more of it is read than they need."""
    monkeypatch.setattr(sentences, "PASSAGES_AT_ONCE", 4)
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for read in itertools.count(1):
            yield f"{read} {read}"

    rows = BUILDERS[kind][0](endless(), Numbers(), LENGTH, 0)  # type: ignore[arg-type]
    assert len(list(itertools.islice(rows, 100))) == 100
    assert read <= 100 * (LENGTH - 3) // 2 + 100


def test_what_is_kept_to_draw_from_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_pairs, "REMEMBERED_ROWS", 7)
    kept = []
    keep = segment_pairs.Elsewhere.keep

    def watched(elsewhere: Any, filling: Any) -> None:
        keep(elsewhere, filling)
        kept.append(len(elsewhere.remembered))

    monkeypatch.setattr(segment_pairs.Elsewhere, "keep", watched)
    rows_of("next sentence", counting(100, 12))
    assert max(kept) == 7


@pytest.mark.parametrize("kind", BUILDERS)
def test_rows_are_drawn_from_the_seed(kind: str) -> None:
    one, again, other = (rows_of(kind, counting(20, 12), seed) for seed in (0, 0, 1))
    assert one == again != other
