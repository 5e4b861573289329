"""CALIBRATORS: where to clip an activation, given how often each of its values was seen.

A wide range spends its 256 steps on values that hardly ever come, a narrow one saturates those that
do. Each row looks at the histogram of real text's activations and returns the range to quantize.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from bertender.core.errors import UnknownNameError
from quantize.affine import INTEGERS, affine

__all__ = ["CALIBRATORS", "Calibrator", "Histogram", "Range", "calibrator_named"]

FloatArray = npt.NDArray[np.float64]
Range = tuple[float, float]
"""The least and the largest number that a tensor is quantized to."""

TRIED_SHARES = np.linspace(0.02, 1.0, 50)
"""Of each end of the range that was seen; the search clips there."""
SWEEPS = 2
"""How often each end is sought, the other being held."""
ACTIVATIONS = INTEGERS["uint8"]
ALMOST_NOTHING = 1e-12


@dataclass(frozen=True)
class Histogram:
    """How often each part of a tensor's range was seen."""

    low: float
    high: float
    counts: npt.NDArray[np.int64]
    """(bins,), of equal width."""

    @property
    def centers(self) -> FloatArray:
        """The middle of each bin: (bins,)."""
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        return np.asarray((edges[1:] + edges[:-1]) / 2)


@dataclass(frozen=True)
class Calibrator:
    """A row of CALIBRATORS."""

    summary: str
    clip: Callable[[Histogram, float], Range]
    """(histogram, percentile) -> the range"""


def _everything(seen: Histogram, percentile: float) -> Range:
    return seen.low, seen.high


def _percentile(seen: Histogram, percentile: float) -> Range:
    """Leave out equal shares of the values at both ends."""
    tail = (1 - percentile / 100) / 2
    share = np.cumsum(seen.counts) / max(seen.counts.sum(), 1)
    edges = np.linspace(seen.low, seen.high, len(seen.counts) + 1)
    first = int(np.searchsorted(share, tail, side="right"))
    last = int(np.searchsorted(share, 1 - tail, side="left"))
    return float(edges[first]), float(edges[last + 1])


def _least_squared_error(seen: Histogram, percentile: float) -> Range:
    return _searched(seen, _squared_error)


def _least_divergence(seen: Histogram, percentile: float) -> Range:
    return _searched(seen, _divergence)


def _searched(seen: Histogram, badness: Callable[[Histogram, Range], float]) -> Range:
    """Clip one end, then the other, where the badness is least; twice, as each depends on both."""

    def of_ends(low: float, high: float) -> float:
        return badness(seen, (low, high)) if low <= high else np.inf

    low, high = seen.low, seen.high
    for _ in range(SWEEPS):
        high = min((share * seen.high for share in TRIED_SHARES), key=partial(of_ends, low))
        low = min((share * seen.low for share in TRIED_SHARES), key=partial(of_ends, high=high))
    return float(low), float(high)


def _squared_error(seen: Histogram, clipped: Range) -> float:
    """Return the sum of the squared distances between values and what quantizing leaves of them."""
    centers = seen.centers
    left = affine(*clipped, ACTIVATIONS).rounded(centers)
    return float(((centers - left) ** 2 * seen.counts).sum())


def _divergence(seen: Histogram, clipped: Range) -> float:
    """Return how far the quantized distribution is from the one that was seen (KL, in nats).

    Migacz 2017, "8-bit Inference with TensorRT": what is clipped joins the last bins of what is
    compared with, and each step's mass is spread evenly over its bins that are not empty. His
    ranges are symmetric; here each end is sought on its own, since activations are unsigned.
    """
    low, high = clipped
    centers, counts = seen.centers, seen.counts.astype(np.float64)
    inside = np.flatnonzero((low <= centers) & (centers <= high))
    if not inside.size:
        return np.inf
    first, last = inside[0], inside[-1]
    kept = counts[first : last + 1]
    reference = kept.copy()
    reference[0] += counts[:first].sum()
    reference[-1] += counts[last + 1 :].sum()
    steps = affine(low, high, ACTIVATIONS).quantized(centers[first : last + 1])
    mass = np.bincount(steps, weights=kept, minlength=256)
    filled = np.bincount(steps, weights=(kept > 0).astype(float), minlength=256)
    spread = np.where(kept > 0, mass[steps] / np.maximum(filled[steps], 1), 0.0)
    return _kl(reference, spread)


def _kl(reference: FloatArray, candidate: FloatArray) -> float:
    wanted = reference / max(reference.sum(), ALMOST_NOTHING)
    found = np.maximum(candidate / max(candidate.sum(), ALMOST_NOTHING), ALMOST_NOTHING)
    seen = wanted > 0
    return float((wanted[seen] * np.log(wanted[seen] / found[seen])).sum())


CALIBRATORS: Mapping[str, Calibrator] = {
    "minmax": Calibrator("everything that was seen", _everything),
    "percentile": Calibrator("all but the outermost values", _percentile),
    "entropy": Calibrator("the range whose distribution changes least", _least_divergence),
    "mse": Calibrator("the range with the least squared error", _least_squared_error),
}


def calibrator_named(name: str) -> Calibrator:
    """Return a row of CALIBRATORS, or raise UnknownNameError with the nearest name."""
    if name not in CALIBRATORS:
        raise UnknownNameError("calibrator", name, CALIBRATORS)
    return CALIBRATORS[name]
