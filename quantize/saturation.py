"""Saturation probe: check that this CPU adds the graph's integers exactly.

x86 without 8-bit dot products adds pairs of products in 16 bits; sums beyond that are cut off
without an error. Each product is judged by itself, on its own integer inputs: it is cut
out of the graph, run by the kernels that will serve it, and compared with sums in float64. How far
a whole model's logits are from exact ones shows less: in twelve layers rounding grows to more than
saturation does in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx

from bertender.core.errors import ModelError
from bertender.core.findings import SaturationFindings
from quantize.cuts import exact, rounded_activation, run_cut, static_activation
from quantize.twins import Sample, Twins

__all__ = ["TOLERATED", "Deviation", "check_saturation", "deviations", "probe"]

FloatArray = npt.NDArray[np.float32]
Run = Callable[[onnx.ModelProto, FloatArray], Sequence[FloatArray]]
"""(cut, values of its input) -> its outputs"""
TOLERATED = 1e-3
"""Largest difference of a product's outputs over the largest of them."""


@dataclass(frozen=True)
class Deviation:
    """Distance of a product's sums from exact ones."""

    node: str
    value: float
    """The largest difference of its outputs over the largest of them, its bias left out."""


def probe(
    twins: Iterable[Twins], samples: Mapping[str, Sample], run: Run = run_cut
) -> SaturationFindings:
    """Compare each product of integers with an exact one; raise ModelError where they differ.

    Returns:
        The largest deviation. MatMulNBits rounds inside its kernel and an LSTM cannot be
        cut open: neither has sums that can be compared, and they are not among the products.
    """
    measured = [each for group in twins for each in deviations(group, samples, run)]
    check_saturation(measured)
    worst = max(measured, key=lambda each: each.value, default=None)
    return SaturationFindings(
        products=len(measured),
        rows=max((len(each.largest) for each in samples.values()), default=0),
        largest_deviation=worst and worst.value,
        worst=worst and worst.node,
        allowed=TOLERATED,
    )


def deviations(twins: Twins, samples: Mapping[str, Sample], run: Run) -> Iterator[Deviation]:
    """Yield how far each product that reads one activation is from an exact one."""
    if twins.is_table or all(part.four_bits for part in twins.parts):
        return
    values = _on_the_grid(twins.quantized, samples[twins.start].largest)
    actual = run(twins.quantized, values)
    wanted = run_cut(exact(twins.quantized), values, optimize=False)
    for part, *outputs in zip(twins.parts, actual, wanted, twins.biases, strict=True):
        if not part.four_bits:
            yield Deviation(part.node, _deviation(*outputs))


def _on_the_grid(cut: onnx.ModelProto, values: FloatArray) -> FloatArray:
    """Return activations as a static product rounds them; others as they are.

    A value between two steps may be rounded either way, by a division or by a product with the
    scale's inverse. The sums are not at fault for that.
    """
    rounded = rounded_activation(cut) if static_activation(cut) else None
    return values if rounded is None else run_cut(rounded, values, optimize=False)[0]


def _deviation(actual: FloatArray, wanted: FloatArray, bias: FloatArray) -> float:
    largest = float(np.abs(wanted - bias).max())
    return float(np.abs(actual - wanted).max()) / (largest or 1.0)


def check_saturation(measured: Iterable[Deviation]) -> None:
    """Raise ModelError where a product is too far from an exact one."""
    beyond = sorted(
        (each for each in measured if not each.value <= TOLERATED), key=lambda each: -each.value
    )
    if beyond:
        worst = beyond[0]
        raise ModelError(
            f"this CPU does not add 8-bit products exactly: outputs of {worst.node} are off by "
            f"{worst.value:.2g} of the largest, allowed is {TOLERATED:g} ({len(beyond)} product(s) "
            "beyond it). Its instructions saturate in 16 bits. Weights of 7 bits, by --target "
            "avx2, do not; if these are of 7 bits already, serve the float model here."
        )
