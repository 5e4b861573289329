"""Scores of numbers and of sets: SciPy's and scikit-learn's values, and paired changes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import (
    accuracy_score,
    average_precision_score,
    f1_score,
    jaccard_score,
    mean_absolute_error,
)

from bertender.core.errors import DataError
from bertender.metrics import paired_change, score
from bertender.metrics.metric import LabelSet

NUMBERS = {
    "mean_absolute_error": mean_absolute_error,
    "pearson": lambda truth, found: pearsonr(truth, found).statistic,
    "spearman": lambda truth, found: spearmanr(truth, found).statistic,
}
SETS = {
    "micro_f1": lambda truth, found: f1_score(truth, found, average="micro", zero_division=0),
    "macro_f1": lambda truth, found: f1_score(truth, found, average="macro", zero_division=0),
    "jaccard": lambda truth, found: jaccard_score(
        truth, found, average="samples", zero_division=1.0
    ),
    "exact_match": accuracy_score,
}
LABELS = 5


def drawn_numbers(rows: int = 200) -> tuple[list[float], list[float]]:
    generator = np.random.default_rng(4)
    truth = generator.normal(1000, 3, rows)
    return truth.tolist(), (truth + generator.normal(0, 2, rows)).tolist()


def drawn_sets(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    truth = generator.random((rows, LABELS)) < 0.3
    return truth, truth ^ (generator.random((rows, LABELS)) < 0.1)


def as_tuples(sets: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in sets]


@pytest.mark.parametrize("metric", NUMBERS)
def test_numbers_have_scipys_value_within_their_interval(metric: str) -> None:
    truth, found = drawn_numbers()
    result = score(metric, truth, found)
    assert result.value == pytest.approx(NUMBERS[metric](truth, found))
    assert result.low < result.value < result.high


@pytest.mark.parametrize("metric", ["pearson", "spearman"])
def test_one_number_everywhere_has_no_correlation(metric: str) -> None:
    truth, found = drawn_numbers()
    constant = score(metric, truth, [1000.1] * len(truth))
    assert (constant.value, constant.undefined) == (0, "all predictions are the number 1000")
    assert score(metric, [3.0] * len(found), found).undefined == "all rows have the number 3"


@pytest.mark.parametrize("metric", SETS)
def test_sets_have_scikit_learns_value_within_their_interval(metric: str) -> None:
    truth, found = drawn_sets()
    result = score(metric, as_tuples(truth), as_tuples(found), label_count=LABELS)
    assert result.value == pytest.approx(SETS[metric](truth, found))
    assert result.low < result.value < result.high


def test_empty_sets_are_right_where_nothing_is_there() -> None:
    nothing = [(), (), ()]
    assert score("jaccard", nothing, nothing, label_count=2).value == 1
    assert score("exact_match", nothing, nothing, label_count=2).value == 1
    assert score("micro_f1", nothing, nothing, label_count=2).undefined == "no row has a label"


def test_a_label_that_is_nowhere_counts_neither_for_nor_against() -> None:
    truth, found = [(0,), (1,), (0,)], [(0,), (1,), (1,)]
    assert score("macro_f1", truth, found, label_count=9).value == pytest.approx(2 / 3)


@pytest.mark.parametrize("ties", [False, True])
def test_mean_average_precision_is_scikit_learns(ties: bool) -> None:
    truth, _ = drawn_sets()
    logits = truth + np.random.default_rng(6).normal(0, 1, truth.shape)
    logits = np.round(logits) if ties else logits
    result = score("mean_average_precision", as_tuples(truth), logits, label_count=LABELS)
    expected = average_precision_score(truth, logits, average="macro")
    assert result.value == pytest.approx(expected)
    assert result.low < result.value < result.high


@pytest.mark.parametrize("metric", ["pearson", "spearman", *SETS])
def test_a_model_does_not_change_against_itself(metric: str) -> None:
    truth, found = (
        drawn_numbers() if metric in NUMBERS else map(as_tuples, drawn_sets())  # type: ignore[assignment]
    )
    change = paired_change(metric, truth, found, found, LabelSet(LABELS))
    assert (change.value, change.low, change.high) == (0, 0, 0)
    better = paired_change(metric, truth, found, truth, LabelSet(LABELS))
    assert better.value > 0


@pytest.mark.parametrize("metric", ["pearson", "jaccard"])
def test_rows_must_be_as_many(metric: str) -> None:
    with pytest.raises(DataError, match="no rows to score"):
        score(metric, [], [])
    with pytest.raises(DataError, match="2 labels and 1 predictions"):
        score(metric, [(0,), (1,)], [(0,)])


def test_a_label_of_another_task_is_refused() -> None:
    with pytest.raises(DataError, match="label ids from 0 to 7 do not fit a task of 3 labels"):
        score("micro_f1", [(0,)], [(7,)], label_count=3)
