"""Affine quantization: integer types, scales, target machines, and calibrators.

    real = scale * (integer - zero_point)    (Jacob et al. 2018, arXiv 1712.05877, eq. 1)

ONNX Runtime computes the same when it writes a graph; `affine` is for calibration and for fake
quantization in training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.config import Table
from bertender.core.errors import ModelError
from bertender.core.hardware import has_int8_acceleration
from bertender.core.machine import Environment, environment, is_arm64
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, saturates

FloatArray = npt.NDArray[np.floating[Any]]
Integers8 = npt.NDArray[np.int8]
WeightScales = npt.NDArray[np.float64]
"""(outputs,), the value of one step of each output's weights."""
Range = tuple[float, float]
"""The smallest and the largest number of a quantized tensor."""

LEAST_SCALE = float(np.finfo(np.float32).tiny)
TRIED_SHARES = np.linspace(1.0, 0.02, 50)
"""Shares of each end of the observed range to try; the widest first, which wins ties."""
ALMOST_NOTHING = 1e-12
RANGES_AT_ONCE = 50
"""Ranges to try at once: their values stay in the CPU's cache."""


@dataclass(frozen=True)
class Integers:
    """A row of INTEGERS: an integer type and its range."""

    lowest: int
    highest: int
    symmetric: bool = False
    """The zero point is 0, and the range is symmetric around 0."""


INTEGERS: Mapping[str, Integers] = {
    "uint8": Integers(0, 255),
    "int8-symmetric": Integers(-127, 127, symmetric=True),
    # two products of 8 and 7 bits fit into 16 bits: 2 * 255 * 64 < 2**15
    "int7-symmetric": Integers(-64, 64, symmetric=True),
}


@dataclass(frozen=True)
class Affine:
    """Scale and zero point for some integers."""

    scale: float
    zero_point: int
    integers: Integers

    def quantized(self, values: FloatArray) -> npt.NDArray[np.int32]:
        """Return the nearest integers; values beyond the range are clipped."""
        steps = np.rint(np.asarray(values, dtype=np.float64) / self.scale) + self.zero_point
        clipped = np.clip(steps, self.integers.lowest, self.integers.highest)
        return np.asarray(clipped, dtype=np.int32)

    def real(self, integers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
        """Return the numbers represented by integers."""
        return (integers.astype(np.float64) - self.zero_point) * self.scale

    def rounded(self, values: FloatArray) -> npt.NDArray[np.float64]:
        """Return values after quantizing and dequantizing."""
        return self.real(self.quantized(values))


def affine(low: float, high: float, integers: Integers) -> Affine:
    """Return the scale and zero point for which the integers span a range.

    Args:
        low: smallest number; a range above 0 is extended to 0, so that 0 is exact.
        high: largest number; a range below 0 is extended to 0.
        integers: a row of INTEGERS.

    Raises:
        ValueError: the range ends below its start.
    """
    if not low <= high:
        raise ValueError(f"a range from {low} to {high}; its end must not be below its start")
    low, high = min(low, 0.0), max(high, 0.0)
    if integers.symmetric:
        high = max(-low, high)
        low = -high
    scale = (high - low) / (integers.highest - integers.lowest)
    if scale < LEAST_SCALE:
        return Affine(1.0, 0, integers)  # only zeros
    zero_point = 0 if integers.symmetric else round(integers.lowest - low / scale)
    return Affine(scale, zero_point, integers)


def nearest(steps: FloatArray, highest: int) -> Integers8:
    """Return the nearest integers to a weight in steps of its scales."""
    return np.asarray(np.clip(np.rint(steps), -highest, highest), dtype=np.int8)


def weight_scales(weight: FloatArray, highest: int) -> WeightScales:
    """Return the scale of each output of a weight (inputs, outputs), with the largest integer
    `highest`."""
    largest = np.abs(weight.astype(np.float64)).max(axis=0)
    return np.where(largest > 0, largest, highest) / highest


@dataclass(frozen=True)
class Target:
    """A row of TARGETS: the integers of a serving machine.

    CPUs with VNNI, AMX or ARM's dot products sum 8-bit products in 32 bits. Other x86 CPUs first
    sum pairs in 16 bits, which saturates: wrong outputs, without an error. With bertender's session
    options, ONNX Runtime uses slower, exact instructions there for weights of more than 7 bits;
    other runtimes by default do not.
    """

    summary: str
    activations: str = "uint8"
    """A row of INTEGERS."""
    weights: str = "int8-symmetric"
    """A row of INTEGERS."""
    fused_products: bool = False
    """Whether its kernels need a dynamic product and the rounding of its activation in one
    operator."""
    refused: str = ""
    """Why nothing is quantized for this target; empty if quantizing helps."""

    @property
    def has_8_bit_weights(self) -> bool:
        """Whether weights have more than the 7 bits whose sums fit into 16 bits everywhere."""
        return INTEGERS[self.weights].highest > INTEGERS["int7-symmetric"].highest


AUTO = "auto"
X86 = frozenset({"vnni", "avx2"})
"""Targets with the same kinds of integers."""
TARGETS = Table(
    "target",
    {
        "vnni": Target("x86 with 8-bit dot products: AVX-512 VNNI, AVX-VNNI or AMX"),
        "avx2": Target("x86 without them: 7-bit weights, whose sums fit", weights="int7-symmetric"),
        "arm64": Target(
            "64-bit ARM, whose kernels need signed activations where these are static",
            "int8-symmetric",
            fused_products=True,
        ),
        "gpu": Target(
            "an NVIDIA GPU",
            refused="ONNX Runtime's CUDA provider has no 8-bit kernels for these products, so that "
            "each would be turned back into floats. Export in float16 "
            "instead, as bertender export --precision float16, or quantize for the CPU",
        ),
    },
)


def target_of(name: str, machine: Environment | None = None) -> tuple[str, Target]:
    """Return a row of TARGETS with its name; for "auto", that of the machine, by default this one.

    Raises:
        ModelError: an 8-bit model would be slower there than its float model.
    """
    chosen = _suited_to(machine or environment()) if name == AUTO else name
    target = TARGETS[chosen]
    if target.refused:
        raise ModelError(f"target={name!r}: {target.refused}.")
    return chosen, target


def runs_here(
    name: str, runtime: str = DEFAULT_RUNTIME, machine: Environment | None = None
) -> bool:
    """Return whether a machine, by default this one, computes a target's graphs as the target does.

    Args:
        name: a row of TARGETS.
        runtime: row of RUNTIMES that computes them.
        machine: machine to check.
    """
    if not RUNTIMES[runtime].integer_products:
        return False
    here = _suited_to(machine or environment())
    if {name, here} == X86:
        return name == "avx2" or RUNTIMES[runtime].exact_on_x86
    return name == here


def check_exact(name: str, runtime: str) -> None:
    """Raise an error if this CPU would sum a target's products wrongly, so that gates could not
    judge.

    Raises:
        ModelError: the CPU's sums saturate.
    """
    if saturates() and not RUNTIMES[runtime].exact_on_x86 and TARGETS[name].has_8_bit_weights:
        raise ModelError(
            f"target={name!r} with runtime={runtime!r}: this CPU has no 8-bit dot products, and "
            f"{RUNTIMES[runtime].title} would not add those of 8-bit weights exactly here. Give "
            "--target avx2, or quantize on a CPU of the kind that will serve."
        )


def _suited_to(machine: Environment) -> str:
    if is_arm64(machine):
        return "arm64"
    return "vnni" if has_int8_acceleration(machine.cpu_flags) else "avx2"


@dataclass(frozen=True)
class Histogram:
    """Counts of values in each bin of a tensor's range."""

    low: float
    high: float
    counts: npt.NDArray[np.int64]
    """(bins,), of equal width."""

    @cached_property
    def edges(self) -> npt.NDArray[np.float64]:
        """Edges of the bins: (bins + 1,)."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @cached_property
    def centers(self) -> npt.NDArray[np.float64]:
        """Centers of the bins: (bins,)."""
        return np.asarray((self.edges[1:] + self.edges[:-1]) / 2)

    @cached_property
    def moments(self) -> npt.NDArray[np.float64]:
        """Sums over the bins below each edge of the values to the powers 0, 1 and 2: (3, bins +
        1)."""
        powers = self.centers ** np.arange(3)[:, None]
        return np.cumsum(np.pad(self.counts * powers, ((0, 0), (1, 0))), axis=1)


class Calibrator:
    """A row of CALIBRATORS: bounds for clipping an activation, from a histogram of its values.

    A wide range wastes steps on rare values, a narrow one saturates common ones. Unsigned integers
    have two bounds; symmetric ones have one bound, and half as many steps for values of one sign.
    This calibrator takes the whole range.
    """

    def __init__(self, summary: str) -> None:
        self.summary = summary

    def clip(self, seen: Histogram, percentile: float, integers: Integers) -> Range:
        """Return the range to quantize to.

        Args:
            seen: histogram of the activation on real text.
            percentile: share of values to keep, for the calibrator that uses it.
            integers: integers of the quantized activation.
        """
        return seen.low, seen.high


class Percentile(Calibrator):
    """Clips equal shares of values at both ends; for symmetric integers, the largest in size."""

    def clip(self, seen: Histogram, percentile: float, integers: Integers) -> Range:
        total = max(seen.counts.sum(), 1)
        if integers.symmetric:
            sizes = np.abs(seen.centers)
            order = np.argsort(sizes)
            share = np.cumsum(seen.counts[order]) / total
            last = order[int(np.searchsorted(share, percentile / 100, side="left"))]
            half_a_bin = (seen.high - seen.low) / len(seen.counts) / 2
            largest = float(sizes[last] + half_a_bin)
            return -largest, largest
        tail = (1 - percentile / 100) / 2
        share = np.cumsum(seen.counts) / total
        first = int(np.searchsorted(share, tail, side="right"))
        last = int(np.searchsorted(share, 1 - tail, side="left"))
        return float(seen.edges[first]), float(seen.edges[last + 1])


class SearchedRange(Calibrator):
    """Takes the tried range with the smallest error."""

    def errors(
        self, seen: Histogram, ranges: Sequence[Range], integers: Integers
    ) -> npt.NDArray[np.float64]:
        """Return the error of each range: (ranges,)."""
        raise NotImplementedError

    def clip(self, seen: Histogram, percentile: float, integers: Integers) -> Range:
        low, high = min(seen.low, 0.0), max(seen.high, 0.0)  # quantized ranges include 0
        if integers.symmetric:
            sizes = (TRIED_SHARES * max(-low, high)).tolist()
            tried = [(-size, size) for size in sizes]
        else:
            # for an end at 0, all shares are equal
            ends = (list(dict.fromkeys((TRIED_SHARES * end).tolist())) for end in (low, high))
            tried = list(product(*ends))
        starts = range(0, len(tried), RANGES_AT_ONCE)
        lost = [
            self.errors(seen, tried[start : start + RANGES_AT_ONCE], integers) for start in starts
        ]
        return tried[int(np.concatenate(lost).argmin())]


class SquaredError(SearchedRange):
    """Minimises the squared error of quantizing."""

    def errors(
        self, seen: Histogram, ranges: Sequence[Range], integers: Integers
    ) -> npt.NDArray[np.float64]:
        # the squared error of a step follows from the moments of its values: time grows with steps,
        # not bins
        spans = [affine(*each, integers) for each in ranges]
        scales = np.array([[each.scale] for each in spans])
        zero_points = np.array([[each.zero_point] for each in spans])
        real = (np.arange(integers.lowest, integers.highest + 1) - zero_points) * scales
        ends = np.searchsorted(seen.centers, real[:, :-1] + scales / 2)
        ends = np.pad(ends, ((0, 0), (1, 1)), constant_values=(0, len(seen.counts)))
        count, first, second = np.diff(seen.moments[:, ends])
        return np.asarray((second - 2 * real * first + real**2 * count).sum(axis=1))


class Divergence(SearchedRange):
    """Minimises the KL divergence (in nats) of the quantized distribution from the observed one.

    Migacz 2017, "8-bit Inference with TensorRT": clipped values join the outermost bins of the
    reference, and each step's mass is spread evenly over its non-empty bins. Ranges there are
    symmetric; here each bound of unsigned integers is found separately.
    """

    def errors(
        self, seen: Histogram, ranges: Sequence[Range], integers: Integers
    ) -> npt.NDArray[np.float64]:
        return np.array([self._error(seen, each, integers) for each in ranges])

    def _error(self, seen: Histogram, clipped: Range, integers: Integers) -> float:
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
        mass = np.bincount(steps, weights=within)
        filled = np.bincount(steps, weights=(within > 0).astype(float))
        spread = np.where(within > 0, mass[steps] / np.maximum(filled[steps], 1), 0.0)
        wanted = reference / max(reference.sum(), ALMOST_NOTHING)
        rounded = np.maximum(spread / max(spread.sum(), ALMOST_NOTHING), ALMOST_NOTHING)
        held = wanted > 0
        return float((wanted[held] * np.log(wanted[held] / rounded[held])).sum())


CALIBRATORS = Table(
    "calibrator",
    {
        "minmax": Calibrator("everything that was seen"),
        "percentile": Percentile("all but the outermost values"),
        "entropy": Divergence("the range whose distribution changes least"),
        "mse": SquaredError("the range with the least squared error"),
    },
)
