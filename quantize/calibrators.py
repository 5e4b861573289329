"""CALIBRATORS: where to clip an activation, from a histogram of its values.

A wide range spends its steps on values that hardly ever come, a narrow one saturates those that do.
Each row looks at the histogram of real text's activations and returns the range to quantize, for
the integers that will be written: unsigned ones have two ends, symmetric ones a largest size alone,
and half as many steps for values of one sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np
import numpy.typing as npt

from bertender.core.table import Table
from quantize.affine import Integers, affine

__all__ = [
    "CALIBRATORS",
    "Calibrator",
    "ClippingErrors",
    "Histogram",
    "Range",
    "divergences",
    "squared_errors",
]

FloatArray = npt.NDArray[np.float64]
Range = tuple[float, float]
"""The least and the largest number that a tensor is quantized to."""

TRIED_SHARES = np.linspace(1.0, 0.02, 50)
"""Of each end of the range that was seen, the widest first, which wins a tie."""
ALMOST_NOTHING = 1e-12
RANGES_AT_ONCE = 50
"""To try: what is computed of them stays in the CPU's cache."""


@dataclass(frozen=True)
class Histogram:
    """Counts of the values in each part of a tensor's range."""

    low: float
    high: float
    counts: npt.NDArray[np.int64]
    """(bins,), of equal width."""

    @cached_property
    def centers(self) -> FloatArray:
        """The middle of each bin: (bins,)."""
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        return np.asarray((edges[1:] + edges[:-1]) / 2)

    @cached_property
    def moments(self) -> FloatArray:
        """Sums of the values below each bin, to the powers of 0, 1 and 2: (3, bins + 1)."""
        powers = self.centers ** np.arange(3)[:, None]
        return np.cumsum(np.pad(self.counts * powers, ((0, 0), (1, 0))), axis=1)


ClippingErrors = Callable[[Histogram, Sequence[Range], Integers], FloatArray]
"""(histogram, ranges, the integers that span each) -> what is lost by each: (ranges,)"""


@dataclass(frozen=True)
class Calibrator:
    """A row of CALIBRATORS."""

    summary: str
    clip: Callable[[Histogram, float, Integers], Range]
    """(histogram, percentile, the integers that will be written) -> the range"""
    errors: ClippingErrors | None = None
    """Errors that the search for a range minimises; None without a search."""


def _everything(seen: Histogram, percentile: float, integers: Integers) -> Range:
    return seen.low, seen.high


def _percentile(seen: Histogram, percentile: float, integers: Integers) -> Range:
    """Leave out equal shares of the values at both ends; of symmetric integers, the largest."""
    if integers.symmetric:
        return _largest_share(seen, percentile / 100)
    tail = (1 - percentile / 100) / 2
    share = np.cumsum(seen.counts) / max(seen.counts.sum(), 1)
    edges = np.linspace(seen.low, seen.high, len(seen.counts) + 1)
    first = int(np.searchsorted(share, tail, side="right"))
    last = int(np.searchsorted(share, 1 - tail, side="left"))
    return float(edges[first]), float(edges[last + 1])


def _largest_share(seen: Histogram, held: float) -> Range:
    """Return the symmetric range that holds a share of the values."""
    sizes = np.abs(seen.centers)
    order = np.argsort(sizes)
    share = np.cumsum(seen.counts[order]) / max(seen.counts.sum(), 1)
    last = order[int(np.searchsorted(share, held, side="left"))]
    half_a_bin = (seen.high - seen.low) / len(seen.counts) / 2
    largest = float(sizes[last] + half_a_bin)
    return -largest, largest


def _searched(summary: str, errors: ClippingErrors) -> Calibrator:
    """Return the row of the range that has the least error of all that are tried."""

    def clip(seen: Histogram, percentile: float, integers: Integers) -> Range:
        tried = _tried(seen, integers)
        starts = range(0, len(tried), RANGES_AT_ONCE)
        lost = [errors(seen, tried[start : start + RANGES_AT_ONCE], integers) for start in starts]
        return tried[int(np.concatenate(lost).argmin())]

    return Calibrator(summary, clip, errors)


def _tried(seen: Histogram, integers: Integers) -> list[Range]:
    """Return ranges within what was seen, which hold 0: all that are written do."""
    low, high = min(seen.low, 0.0), max(seen.high, 0.0)
    if integers.symmetric:
        sizes = (TRIED_SHARES * max(-low, high)).tolist()
        return [(-size, size) for size in sizes]
    # an end at 0 is one end, not fifty
    lows, highs = (list(dict.fromkeys((TRIED_SHARES * end).tolist())) for end in (low, high))
    return list(product(lows, highs))


def squared_errors(seen: Histogram, ranges: Sequence[Range], integers: Integers) -> FloatArray:
    """Return the sum of the squared distances between values and what quantizing leaves of them.

    Of each of some ranges: (ranges,). The distances to what a step stands for are sums of moments
    of its values, so the time grows with the steps, not with the bins.
    """
    spans = [affine(*each, integers) for each in ranges]
    scales = np.array([[each.scale] for each in spans])
    zero_points = np.array([[each.zero_point] for each in spans])
    real = (np.arange(integers.lowest, integers.highest + 1) - zero_points) * scales
    ends = np.searchsorted(seen.centers, real[:, :-1] + scales / 2)
    ends = np.pad(ends, ((0, 0), (1, 1)), constant_values=(0, len(seen.counts)))
    count, first, second = np.diff(seen.moments[:, ends])
    return np.asarray((second - 2 * real * first + real**2 * count).sum(axis=1))


def divergences(seen: Histogram, ranges: Sequence[Range], integers: Integers) -> FloatArray:
    """Return how far each quantized distribution is from the one that was seen (KL, in nats).

    Of each of some ranges: (ranges,). Migacz 2017, "8-bit Inference with TensorRT": what is clipped
    joins the last bins of what is compared with, and each step's mass is spread evenly over its
    bins that are not empty. His ranges are symmetric; of unsigned integers each end is sought on
    its own.
    """
    return np.array([_divergence(seen, clipped, integers) for clipped in ranges])


def _divergence(seen: Histogram, clipped: Range, integers: Integers) -> float:
    low, high = clipped
    centers, counts = seen.centers, seen.counts.astype(np.float64)
    inside = np.flatnonzero((low <= centers) & (centers <= high))
    if not inside.size:
        return np.inf
    first, end = inside[0], inside[-1] + 1
    within = counts[first:end]
    reference = within.copy()
    reference[0] += counts[:first].sum()
    reference[-1] += counts[end:].sum()
    steps = affine(low, high, integers).quantized(centers[first:end]) - integers.lowest
    return _kl(reference, _spread_evenly(within, steps))


def _spread_evenly(counts: FloatArray, steps: npt.NDArray[np.int64]) -> FloatArray:
    """Return counts (bins,) with each step's mass spread over its bins that are not empty."""
    mass = np.bincount(steps, weights=counts)
    filled = np.bincount(steps, weights=(counts > 0).astype(float))
    return np.where(counts > 0, mass[steps] / np.maximum(filled[steps], 1), 0.0)


def _kl(reference: FloatArray, candidate: FloatArray) -> float:
    wanted = reference / max(reference.sum(), ALMOST_NOTHING)
    rounded = np.maximum(candidate / max(candidate.sum(), ALMOST_NOTHING), ALMOST_NOTHING)
    seen = wanted > 0
    return float((wanted[seen] * np.log(wanted[seen] / rounded[seen])).sum())


CALIBRATORS = Table(
    "calibrator",
    {
        "minmax": Calibrator("everything that was seen", _everything),
        "percentile": Calibrator("all but the outermost values", _percentile),
        "entropy": _searched("the range whose distribution changes least", divergences),
        "mse": _searched("the range with the least squared error", squared_errors),
    },
)
