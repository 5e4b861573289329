"""What is held out: every passage on one side, runs together, documents kept apart."""

from __future__ import annotations

import pytest

from distill.pretraining.corpus import HELD_OUT_EVERY
from distill.pretraining.rows import part_of

PASSAGES = [f"passage {number}" for number in range(1000)]


@pytest.mark.parametrize("run", [1, 8])
def test_every_passage_is_on_one_side(run: int) -> None:
    training, held_out = (
        [text for text in part_of(PASSAGES, held_out=side, run=run) if text]
        for side in (False, True)
    )
    assert sorted([*training, *held_out]) == sorted(PASSAGES)
    assert len(held_out) == pytest.approx(1000 / HELD_OUT_EVERY, abs=run)


def test_single_passages_leave_no_mark() -> None:
    assert list(part_of(PASSAGES[:52], held_out=True)) == [PASSAGES[0], PASSAGES[50]]
    assert list(part_of(PASSAGES[:52], held_out=False)) == [*PASSAGES[1:50], PASSAGES[51]]


def test_a_run_that_is_missing_ends_a_document() -> None:
    texts = [*PASSAGES[:401], "", PASSAGES[401]]
    training = list(part_of(texts, held_out=False, run=8))
    assert training == ["", *PASSAGES[8:400], ""]
    assert list(part_of(texts, held_out=True, run=8)) == [
        *PASSAGES[:8],
        "",
        PASSAGES[400],
        "",
        PASSAGES[401],
    ]


def test_documents_are_apart_on_both_sides() -> None:
    texts = [text for passage in PASSAGES[:60] for text in (passage, "")]
    for side in (False, True):
        assert list(part_of(texts, held_out=side)).count("") == 60
