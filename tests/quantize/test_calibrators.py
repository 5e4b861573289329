"""Where activations are clipped: outliers cost precision, and what is common must stay."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertender.core.errors import UnknownNameError
from quantize.affine import INTEGERS, affine
from quantize.calibrators import CALIBRATORS, Histogram, calibrator_named

every_calibrator = pytest.mark.parametrize("name", CALIBRATORS)


def histogram(values: np.ndarray, bins: int = 2048) -> Histogram:
    low, high = float(values.min()), float(values.max())
    return Histogram(low, high, np.histogram(values, bins, (low, high))[0])


def with_outliers() -> np.ndarray:
    """A normal distribution, and two values that are far from all others."""
    values = np.random.default_rng(0).normal(size=400_000)
    values[:2] = -20, 20
    return values


def error(values: np.ndarray, bounds: tuple[float, float]) -> float:
    """Median: what common values lose."""
    left = affine(*bounds, INTEGERS["uint8"]).rounded(values)
    return float(np.median(np.abs(values - left)))


@every_calibrator
@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(0, 1000), min_size=8, max_size=200).filter(any),
    low=st.floats(-100, 50),
    width=st.floats(0.1, 200),
)
def test_the_range_lies_in_what_was_seen(
    name: str, counts: list[int], low: float, width: float
) -> None:
    """Or reaches to 0, which every range holds."""
    seen = Histogram(low, low + width, np.array(counts))
    first, last = CALIBRATORS[name].clip(seen, 99.99)
    assert min(low, 0) - 1e-6 <= first <= last <= max(low + width, 0) + 1e-6


def test_minmax_keeps_everything() -> None:
    values = with_outliers()
    assert CALIBRATORS["minmax"].clip(histogram(values), 99.0) == (values.min(), values.max())


@pytest.mark.parametrize("name", ["percentile", "mse", "entropy"])
def test_outliers_do_not_cost_the_rest_its_precision(name: str) -> None:
    values = with_outliers()
    seen = histogram(values)
    clipped = CALIBRATORS[name].clip(seen, 99.99)
    assert error(values, clipped) < 0.7 * error(values, (-20, 20))


@every_calibrator
def test_a_flat_distribution_is_hardly_clipped(name: str) -> None:
    values = np.random.default_rng(0).uniform(-1, 2, size=50_000)
    low, high = CALIBRATORS[name].clip(histogram(values), 99.99)
    assert low == pytest.approx(-1, abs=0.05) and high == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("percentile", [90.0, 99.0])
def test_the_percentile_leaves_equal_tails(percentile: float) -> None:
    values = np.random.default_rng(1).normal(size=100_000)
    low, high = CALIBRATORS["percentile"].clip(histogram(values), percentile)
    tail = (100 - percentile) / 200
    assert np.mean(values > high) == pytest.approx(tail, rel=0.2)
    assert np.mean(values < low) == pytest.approx(tail, rel=0.2)


def test_mse_has_the_least_squared_error_of_all() -> None:
    values = with_outliers()
    seen = histogram(values)
    errors = {}
    for name, row in CALIBRATORS.items():
        left = affine(*row.clip(seen, 99.9), INTEGERS["uint8"]).rounded(values)
        errors[name] = float(((values - left) ** 2).mean())
    assert min(errors, key=lambda name: errors[name]) == "mse"


def test_an_unknown_calibrator_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"calibrator 'minmix'. Did you mean 'minmax'"):
        calibrator_named("minmix")
