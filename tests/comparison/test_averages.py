"""Averages over tasks: which rows belong together, and what is averaged."""

from __future__ import annotations

import pytest

from bertender.comparison.averages import averages
from bertender.comparison.records import ComparisonRow
from bertender.metrics.metric import Score
from tests.comparison.rows import STUDENT, TEACHER, compared

BAG = TEACHER.model_copy(update={"name": "bag-of-words", "kind": "bag-of-words"})


def scored(row: ComparisonRow, value: float) -> ComparisonRow:
    score = Score(metric="accuracy", value=value, low=value, high=value, n=9)
    return row.model_copy(update={"score": score})


TEXTS = compared(scored(TEACHER, 0.9), scored(BAG, 0.5), scored(STUDENT, 0.8))
WORDS = compared(scored(TEACHER, 0.7), scored(STUDENT, 0.6))


@pytest.mark.parametrize("step", [1, -1])
def test_rows_are_matched_by_name(step: int) -> None:
    """A step that a task does not take has no row there."""
    rows = averages({"sst2": TEXTS, "conll2003": compared(*WORDS.rows[::step])}).rows
    assert [each.name for each in rows] == [TEACHER.name, STUDENT.name]
    assert [each.average and each.average.value for each in rows] == pytest.approx([80, 70])
    assert [list(each.scores) for each in rows] == [["sst2", "conll2003"]] * 2


def test_a_speedup_is_over_the_same_model_in_each_table() -> None:
    *_, student = averages({"sst2": TEXTS, "conll2003": WORDS}).rows
    assert student.speedup == pytest.approx(6.31)
    over_words = compared(scored(BAG, 0.5), *WORDS.rows)
    rows = averages({"sst2": over_words, "conll2003": WORDS}).rows
    assert [each.speedup for each in rows] == [None, None]


def test_tables_without_a_common_model_have_no_average() -> None:
    assert averages({"sst2": compared(BAG), "conll2003": WORDS}).rows == ()
