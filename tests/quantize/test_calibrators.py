"""Where activations are clipped: outliers cost precision, and what is common must stay."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertender.core.errors import UnknownNameError
from quantize import integers as calibrators
from quantize.integers import (
    CALIBRATORS,
    INTEGERS,
    TARGETS,
    Histogram,
    Integers,
    SearchedRange,
    affine,
)

GRIDS = sorted({target.activations for target in TARGETS.values()})
"""Rows of INTEGERS that activations are written in."""
UNSIGNED, SYMMETRIC = INTEGERS["uint8"], INTEGERS["int8-symmetric"]
SEARCHED = {name: row for name, row in CALIBRATORS.items() if isinstance(row, SearchedRange)}
every_calibrator = pytest.mark.parametrize("name", CALIBRATORS)
every_grid = pytest.mark.parametrize("grid", GRIDS)


@pytest.fixture(scope="module", autouse=True)
def whole_search(every_share: np.ndarray) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibrators, "TRIED_SHARES", every_share)
        yield


def histogram(values: np.ndarray, bins: int = 2048) -> Histogram:
    low, high = float(values.min()), float(values.max())
    return Histogram(low, high, np.histogram(values, bins, (low, high))[0])


def with_outliers() -> np.ndarray:
    """A normal distribution, and two values that are far from all others."""
    values = np.random.default_rng(0).normal(size=400_000)
    values[:2] = -20, 20
    return values


def normal() -> np.ndarray:
    return np.random.default_rng(3).normal(size=100_000)


def lopsided() -> np.ndarray:
    """As after GELU: half of it just below 0, the other half with a long tail."""
    values = np.random.default_rng(4).standard_t(5, size=100_000)
    return np.where(values > 0, values, np.maximum(values, -1.0) * 0.17)


DISTRIBUTIONS = {
    "normal": normal,
    "lopsided": lopsided,
    "no negatives": lambda: np.abs(normal()),
    "no positives": lambda: -np.abs(lopsided()),
    "outliers": with_outliers,
}


def error(values: np.ndarray, bounds: tuple[float, float], grid: str = "uint8") -> float:
    """Median: what common values lose."""
    left = affine(*bounds, INTEGERS[grid]).rounded(values)
    return float(np.median(np.abs(values - left)))


@every_calibrator
@every_grid
@settings(max_examples=30)
@given(
    counts=st.lists(st.integers(0, 1000), min_size=8, max_size=200).filter(any),
    low=st.floats(-100, 50),
    width=st.floats(0.1, 200),
)
def test_the_range_lies_in_what_was_seen(
    name: str, grid: str, counts: list[int], low: float, width: float
) -> None:
    """Or reaches to 0, which every range holds; a symmetric one to the largest size."""
    seen = Histogram(low, low + width, np.array(counts))
    first, last = CALIBRATORS[name].clip(seen, 99.99, INTEGERS[grid])
    least, most = min(low, 0), max(low + width, 0)
    if INTEGERS[grid].symmetric:
        least, most = -max(-least, most), max(-least, most)
    assert least - 1e-6 <= first <= last <= most + 1e-6


@every_grid
def test_minmax_keeps_everything(grid: str) -> None:
    values = with_outliers()
    clipped = CALIBRATORS["minmax"].clip(histogram(values), 99.0, INTEGERS[grid])
    assert clipped == (values.min(), values.max())


@every_grid
@pytest.mark.parametrize("name", ["percentile", "mse", "entropy"])
def test_outliers_do_not_cost_the_rest_its_precision(name: str, grid: str) -> None:
    values = with_outliers()
    seen = histogram(values)
    clipped = CALIBRATORS[name].clip(seen, 99.99, INTEGERS[grid])
    assert error(values, clipped, grid) < 0.7 * error(values, (-20, 20), grid)


@every_calibrator
def test_a_flat_distribution_is_hardly_clipped(name: str) -> None:
    values = np.random.default_rng(0).uniform(-1, 2, size=50_000)
    low, high = CALIBRATORS[name].clip(histogram(values), 99.99, UNSIGNED)
    assert low == pytest.approx(-1, abs=0.05) and high == pytest.approx(2, abs=0.1)


@every_grid
@pytest.mark.parametrize("values", DISTRIBUTIONS)
@pytest.mark.parametrize("name", SEARCHED)
def test_no_other_range_has_less_error_on_the_integers_that_are_written(
    name: str, values: str, grid: str
) -> None:
    row, seen, integers = SEARCHED[name], histogram(DISTRIBUTIONS[values](), 512), INTEGERS[grid]
    (found,) = row.errors(seen, [row.clip(seen, 99.99, integers)], integers)
    shares = np.arange(1, 26) / 25
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    if integers.symmetric:
        tried = [(-share * max(-low, high), share * max(-low, high)) for share in shares]
    else:
        tried = [(share * low, other * high) for share in shares for other in shares]
    assert found <= row.errors(seen, tried, integers).min() * (1 + 1e-9)
    (whole,) = row.errors(seen, [(low, high)], integers)
    assert np.isfinite(whole) and found <= whole


@pytest.mark.parametrize("name", SEARCHED)
def test_a_lopsided_tensor_is_clipped_for_symmetric_integers(name: str) -> None:
    """Their steps are twice as wide there: what is best of unsigned ones is not."""
    row, seen = SEARCHED[name], histogram(lopsided())
    low, high = row.clip(seen, 99.99, SYMMETRIC)
    of_unsigned = row.clip(seen, 99.99, UNSIGNED)
    assert low == -high and high != pytest.approx(of_unsigned[1], rel=0.02)
    tied, loose = row.errors(seen, [(low, high), of_unsigned], SYMMETRIC)
    assert tied < 0.97 * loose


def test_divergence_of_symmetric_integers_by_hand() -> None:
    """A step a bin changes nothing; bins that share a step become equal, except empty ones."""
    counts = np.array([8, 0, 2, 6, 4, 4])
    seen = Histogram(-3.0, 3.0, counts)
    assert SEARCHED["entropy"].errors(seen, [(-3.0, 3.0)], SYMMETRIC) == pytest.approx(
        [0], abs=1e-9
    )
    coarse = Integers(-1, 1, symmetric=True)  # 0 takes the four bins in the middle
    shares = counts / counts.sum()
    spread = np.array([8, 0, 4, 4, 4, 4]) / counts.sum()
    filled = shares > 0
    by_hand = (shares[filled] * np.log(shares[filled] / spread[filled])).sum()
    assert SEARCHED["entropy"].errors(seen, [(-3.0, 3.0)], coarse) == pytest.approx([by_hand])


@pytest.mark.parametrize("percentile", [90.0, 99.0])
def test_the_percentile_of_symmetric_integers_is_of_sizes(percentile: float) -> None:
    values = lopsided()
    low, high = CALIBRATORS["percentile"].clip(histogram(values), percentile, SYMMETRIC)
    assert low == -high
    assert np.mean(np.abs(values) > high) == pytest.approx(1 - percentile / 100, rel=0.2)


@pytest.mark.parametrize("percentile", [90.0, 99.0])
def test_the_percentile_leaves_equal_tails(percentile: float) -> None:
    values = np.random.default_rng(1).normal(size=100_000)
    low, high = CALIBRATORS["percentile"].clip(histogram(values), percentile, UNSIGNED)
    tail = (100 - percentile) / 200
    assert np.mean(values > high) == pytest.approx(tail, rel=0.2)
    assert np.mean(values < low) == pytest.approx(tail, rel=0.2)


@every_grid
@pytest.mark.parametrize("values", DISTRIBUTIONS)
def test_the_squared_error_is_that_of_every_value(values: str, grid: str) -> None:
    """By its definition, bin by bin: at the whole range, at parts of it, and away from 0."""
    seen, integers = histogram(DISTRIBUTIONS[values](), 512), INTEGERS[grid]
    ranges = [
        (seen.low, seen.high),
        (seen.low / 3, seen.high / 2),
        (seen.low / 50, seen.high),
        (5, 6),
    ]
    wanted = [
        ((seen.centers - affine(*each, integers).rounded(seen.centers)) ** 2 * seen.counts).sum()
        for each in ranges
    ]
    np.testing.assert_allclose(SEARCHED["mse"].errors(seen, ranges, integers), wanted, rtol=1e-9)


@every_grid
def test_mse_has_the_least_squared_error_of_all(grid: str) -> None:
    values = with_outliers()
    seen = histogram(values)
    errors = {}
    for name, row in CALIBRATORS.items():
        left = affine(*row.clip(seen, 99.9, INTEGERS[grid]), INTEGERS[grid]).rounded(values)
        errors[name] = float(((values - left) ** 2).mean())
    assert min(errors, key=lambda name: errors[name]) == "mse"


def test_an_unknown_calibrator_is_refused() -> None:
    with pytest.raises(UnknownNameError, match=r"calibrator 'minmix'. Did you mean 'minmax'"):
        CALIBRATORS["minmix"]
