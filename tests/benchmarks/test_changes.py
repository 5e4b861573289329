"""Average changes over models and data sets: values by hand, and how wide intervals must be."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.cells import mean_change, resampled_change
from bertender.metrics import paired_change
from bertender.problems.single_label_classification import SINGLE_LABEL
from tests.metrics.test_scores import random_rows


def test_the_change_of_means_is_that_of_the_seeds_together() -> None:
    """One seed gains 50 points and one 25: each resample draws one of them, and texts."""
    truth = [1] * 400
    control = [[0, 1, 0, 1] * 100] * 2
    better = [[1, 1, 1, 1] * 100, [1, 1, 0, 1] * 100]
    change = resampled_change("accuracy", truth, control, better).change()
    assert change.value == pytest.approx(37.5)
    low = 25 - 1.645 * 43.3 / 20  # 5 % of the worse seed are 2.5 % of all
    high = 50 + 1.645 * 50 / 20
    assert (change.low, change.high) == pytest.approx((low, high), abs=0.5)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_interval_holds_the_seeds_as_widely_as_they_vary(seeds: int) -> None:
    """With so many texts that they say all, what is left is the error of a mean over seeds."""
    rows, generator = 40_000, np.random.default_rng(seeds)
    truth = np.ones(rows, dtype=np.int64)
    wrong = generator.integers(0, 4000, seeds)
    models = [np.where(np.arange(rows) < count, 0, 1) for count in wrong]
    change = resampled_change("accuracy", truth, [truth], models).change()
    error = 100 * np.std(wrong / rows, ddof=1) / np.sqrt(seeds)
    assert change.value == pytest.approx(-100 * wrong.mean() / rows)
    if seeds >= 5:
        assert change.high - change.low == pytest.approx(2 * 1.96 * error, rel=0.2)
    else:  # there are few means, and the outer ones are no further out: from seed to seed of two
        assert change.high - change.low > 2 * 0.99 * error
    one = paired_change("accuracy", truth, truth, models[0])
    assert change.high - change.low > 2 * (one.high - one.low), "texts alone say far less"


@pytest.mark.parametrize("metric", SINGLE_LABEL.metrics)
def test_several_equal_models_change_as_much_as_one(metric: str) -> None:
    truth, old = random_rows(300, 2, 0.6)
    _, new = random_rows(300, 2, 0.6, seed=3)
    means = resampled_change(metric, truth, [old] * 3, [new] * 2).change()
    one = paired_change(metric, truth, old, new)
    assert (means.value, means.low, means.high) == pytest.approx((one.value, one.low, one.high))


def test_an_average_over_data_sets_is_surer_than_one_of_them() -> None:
    generator = np.random.default_rng(3)
    parts = []
    for place in range(4):
        truth = generator.integers(2, size=200)
        worse = np.where(generator.random(200) < 0.3, 1 - truth, truth)
        better = np.where(generator.random(200) < 0.2, 1 - truth, truth)
        parts.append(resampled_change("accuracy", truth, [worse], [better], seed=place))
    average, alone = mean_change(parts), [part.change() for part in parts]
    assert average.value == pytest.approx(np.mean([each.value for each in alone]))
    width = np.mean([each.high - each.low for each in alone])
    assert (average.high - average.low) / width == pytest.approx(0.5, rel=0.2)
