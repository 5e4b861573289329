"""Metrics: scikit-learn's values, intervals that can be computed by hand, paired changes."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    precision_recall_fscore_support,
)

from bertender.core.errors import DataError, UnknownNameError
from bertender.metrics import METRICS, paired_change, score
from bertender.metrics.labels import Counts, count_labels
from bertender.metrics.metric import FloatArray, OneOrSeveral, Score, label_scores
from bertender.problems.single_label_classification import SINGLE_LABEL
from tests.quick import quick

REFERENCE = {
    ("accuracy", 2): accuracy_score,
    ("accuracy", 4): accuracy_score,
    ("f1", 2): f1_score,
    ("f1", 4): lambda truth, answers: f1_score(truth, answers, average="macro"),
    ("macro_f1", 2): lambda truth, answers: f1_score(truth, answers, average="macro"),
    ("macro_f1", 4): lambda truth, answers: f1_score(truth, answers, average="macro"),
    ("matthews", 2): matthews_corrcoef,
    ("matthews", 4): matthews_corrcoef,
}


def random_rows(rows: int, labels: int, right: float, seed: int = 0):
    generator = np.random.default_rng(seed)
    truth = generator.integers(0, labels, rows)
    guesses = generator.integers(0, labels, rows)
    return truth, np.where(generator.random(rows) < right, truth, guesses)


def over_counts(metric: str, counts: Counts) -> FloatArray:
    row = METRICS[metric]
    return (row.one if isinstance(row, OneOrSeveral) else row).from_counts(counts)


def counts_of(truth, answers, labels: int) -> Counts:
    return count_labels(truth, answers, np.ones((1, len(truth))), labels)


@pytest.mark.parametrize("labels", [2, 4])
@pytest.mark.parametrize("metric", SINGLE_LABEL.metrics)
def test_value_is_scikit_learns_over_rows_and_over_counts(metric: str, labels: int) -> None:
    truth, answers = random_rows(300, labels, 0.6)
    expected = REFERENCE[metric, labels](truth, answers)
    assert score(metric, truth, answers).value == pytest.approx(expected)
    assert over_counts(metric, counts_of(truth, answers, labels)) == pytest.approx([expected])


@pytest.mark.parametrize("metric", SINGLE_LABEL.metrics)
def test_a_resample_without_some_label_is_scored_as_scikit_learn_does(metric: str) -> None:
    truth, answers = np.array([0, 0, 2, 2]), np.array([0, 2, 2, 2])  # labels 1 and 3 never occur
    expected = REFERENCE[metric, 4](truth, answers)
    assert over_counts(metric, counts_of(truth, answers, 4)) == pytest.approx([expected])


def test_accuracy_has_wilsons_interval() -> None:
    # Wilson for 8 of 10 at z = 1.95996: centre 0.7167, half width 0.2266
    result = score("accuracy", [1] * 10, [1] * 8 + [0] * 2)
    assert result == Score(metric="accuracy", value=0.8, low=result.low, high=result.high, n=10)
    assert (result.low, result.high) == pytest.approx((0.49016, 0.94332), abs=1e-5)


@pytest.mark.parametrize("metric", quick(("f1", "matthews"), "f1"))
def test_bootstrap_interval_matches_resampled_rows(metric: str) -> None:
    truth, answers = random_rows(200, 2, 0.7)
    generator = np.random.default_rng(1)
    draws = [generator.integers(0, 200, 200) for _ in range(1000)]
    values = [REFERENCE[metric, 2](truth[draw], answers[draw]) for draw in draws]
    result = score(metric, truth, answers)
    assert (result.low, result.high) == pytest.approx(np.percentile(values, [2.5, 97.5]), abs=0.02)
    assert result.low < result.value < result.high


@pytest.mark.parametrize("metric", SINGLE_LABEL.metrics)
def test_scores_are_the_same_every_time(metric: str) -> None:
    truth, answers = random_rows(100, 3, 0.7)
    assert score(metric, truth, answers) == score(metric, list(truth), list(answers))


def test_label_count_decides_between_binary_and_macro_f1() -> None:
    truth, answers = [0, 1, 1, 0], [0, 1, 0, 0]  # F1 of label 1: 2/3, of label 0: 0.8
    assert score("f1", truth, answers).value == pytest.approx(2 / 3)
    assert score("f1", truth, answers, label_count=3).value == pytest.approx((2 / 3 + 0.8) / 2)


@pytest.mark.filterwarnings("ignore:A single label was found")
def test_what_cannot_be_computed_is_said() -> None:
    same = score("matthews", [1, 1], [1, 0], labels=("no", "yes"))
    assert (same.value, same.undefined) == (0.0, "all rows are 'yes'")
    assert score("matthews", [1, 0], [1, 1]).undefined == "all predictions are 1"
    assert score("f1", [0, 0], [0, 1]).undefined == "no row is 1"
    assert score("f1", [0, 1], [0, 0]).undefined is None, "it found none of them: that is 0"
    assert score("f1", [0, 0], [0, 0], label_count=3).undefined is None
    assert score("accuracy", [1, 1], [1, 0]).undefined is None


def test_change_is_in_points_of_the_candidate_over_the_reference() -> None:
    truth = [1] * 10
    change = paired_change("accuracy", truth, [1] * 8 + [0] * 2, [1] * 9 + [0])
    assert change.value == pytest.approx(10.0)
    assert change.low <= change.value <= change.high


@pytest.mark.parametrize("metric", SINGLE_LABEL.metrics)
def test_equal_answers_change_nothing_and_the_interval_says_so(metric: str) -> None:
    truth, answers = random_rows(100, 3, 0.7)
    change = paired_change(metric, truth, answers, answers)
    assert (change.value, change.low, change.high) == (0.0, 0.0, 0.0)


def test_pairing_makes_the_interval_narrower_than_the_scores_own() -> None:
    truth, answers = random_rows(400, 2, 0.7)
    better = answers.copy()
    wrong = np.flatnonzero(answers != truth)[:8]
    better[wrong] = truth[wrong]
    change = paired_change("accuracy", truth, answers, better)
    own = score("accuracy", truth, answers)
    # 8 of 400 rows differ, all for the better: standard error sqrt(.02 * .98 / 400) = 0.7 points
    assert change.value == pytest.approx(2.0)
    assert (change.low, change.high) == pytest.approx((0.75, 3.5), abs=0.3)
    assert change.high - change.low < 100 * (own.high - own.low) / 2


def test_unknown_metric_names_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'acuracy'.*'accuracy'"):
        METRICS["acuracy"]


def test_no_rows_and_missing_rows_are_errors() -> None:
    with pytest.raises(DataError, match="no rows to score"):
        score("accuracy", [], [])
    with pytest.raises(DataError, match="3 labels"):
        paired_change("f1", [0, 1, 1], [0, 1, 1], [0, 1])


@pytest.mark.parametrize("answers", [[0, 3], [0, -1]])
def test_ids_of_another_tasks_labels_are_an_error(answers: list[int]) -> None:
    with pytest.raises(DataError, match="task of 2 labels"):
        score("accuracy", [0, 1], answers, label_count=2)


def test_each_label_has_scikit_learns_scores() -> None:
    truth, answers = random_rows(200, 3, 0.6)
    names = ["a", "b", "c"]
    rows = [[{(names[each], None)} for each in column] for column in (truth, answers)]
    found = label_scores(*rows, [*names, "nowhere"])
    expected = zip(*precision_recall_fscore_support(truth, answers), strict=True)
    for own, (precision, recall, f1, actual) in zip(found.values(), expected, strict=False):
        assert (own.precision, own.recall, own.f1) == pytest.approx((precision, recall, f1))
        assert own.actual == actual
    assert sum(each.predicted for each in found.values()) == 200
    nowhere = found["nowhere"]
    assert (nowhere.precision, nowhere.recall, nowhere.f1, nowhere.actual) == (None, None, None, 0)
