"""Scale and zero point: how a range of real numbers becomes 8-bit integers, and back.

    real = scale * (integer - zero_point)    (Jacob et al. 2018, arXiv 1712.05877, eq. 1)

ONNX Runtime computes the same from the same range when it writes a graph; what is here serves the
choice of the range, and the fake quantization that is trained with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["INTEGERS", "Affine", "Integers", "affine"]

FloatArray = npt.NDArray[np.floating[Any]]
LEAST_SCALE = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Integers:
    """A row of INTEGERS: which integers stand for numbers."""

    lowest: int
    highest: int
    symmetric: bool = False
    """0 is 0: the range is as wide below it as above."""


INTEGERS: Mapping[str, Integers] = {
    "uint8": Integers(0, 255),
    "int8-symmetric": Integers(-127, 127, symmetric=True),
    # two products of 8 and 7 bits fit into 16 bits: 2 * 255 * 64 < 2**15
    "int7-symmetric": Integers(-64, 64, symmetric=True),
}


@dataclass(frozen=True)
class Affine:
    """A scale and a zero point for some integers."""

    scale: float
    zero_point: int
    integers: Integers

    def quantized(self, values: FloatArray) -> npt.NDArray[np.int32]:
        """Return the nearest integers; values beyond the range become its end."""
        steps = np.rint(np.asarray(values, dtype=np.float64) / self.scale) + self.zero_point
        clipped = np.clip(steps, self.integers.lowest, self.integers.highest)
        return np.asarray(clipped, dtype=np.int32)

    def real(self, integers: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
        """Return what the integers stand for."""
        return (integers.astype(np.float64) - self.zero_point) * self.scale

    def rounded(self, values: FloatArray) -> npt.NDArray[np.float64]:
        """Return some values after a round trip."""
        return self.real(self.quantized(values))


def affine(low: float, high: float, integers: Integers) -> Affine:
    """Return the scale and zero point with which the integers span a range.

    Args:
        low: least number; a range above 0 is widened to begin there, so that 0 is exact.
        high: largest number; likewise.
        integers: a row of INTEGERS.

    Raises:
        ValueError: the range is not a range.
    """
    if not low <= high:
        raise ValueError(f"a range from {low} to {high}; its end must not be below its start")
    low, high = min(low, 0.0), max(high, 0.0)
    if integers.symmetric:
        high = max(-low, high)
        low = -high
    steps = integers.highest - integers.lowest
    scale = (high - low) / steps
    if scale < LEAST_SCALE:
        return Affine(1.0, 0, integers)  # nothing but zeros
    zero_point = 0 if integers.symmetric else round(integers.lowest - low / scale)
    return Affine(scale, zero_point, integers)
