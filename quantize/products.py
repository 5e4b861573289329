"""Check of each quantized product against its float twin, on the product's own inputs.

A wrong scale in one product of forty need not turn a prediction. Here each product is compared with
its twin alone: what rounding costs a healthy one is known, and a fault costs more. Its weights and
its outputs are judged apart. For the weights, the twin reads the activations as they were rounded,
so that nothing but the weights differs; for the outputs, it reads them as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import numpy_helper

from quantize.affine import INTEGERS, affine
from quantize.calibration import Batches
from quantize.calibrators import Range
from quantize.cuts import (
    RunCut,
    exact,
    open_cut,
    rounded_activation,
    run_cut,
    static_activation,
)
from quantize.graph import FOUR_BIT_LOOKUP
from quantize.part_findings import ProductFindings
from quantize.twins import Part, Sample, Twins, find_twins, sample_rows

__all__ = ["NO_RANGES", "compare_products", "judge_products"]

FloatArray = npt.NDArray[np.floating[Any]]
TINY = 1e-20
"""Stands for a sum of squares that is 0."""
NO_NOISE_DB = 200.0
"""Of outputs that are equal, zeros among them."""
NO_RANGES: Mapping[str, Range] = {}
VALUES_A_BYTE = 2
"""Of a table of 4 bits."""
ACTIVATIONS = {"uint8": "uint8", "int8": "int8-symmetric"}
"""Type of the integers -> their row of INTEGERS."""


def compare_products(
    float_graph: Path,
    quantized_graph: Path,
    batches: Batches,
    ranges: Mapping[str, Range] = NO_RANGES,
) -> tuple[ProductFindings, ...]:
    """Compare each quantized product and table of a graph with its float twin.

    Args:
        float_graph: what the other was made of.
        quantized_graph: as a scheme wrote it. Sums are computed exactly, whatever this CPU does.
        batches: real texts, whose activations the quantized graph is watched on.
        ranges: that static activations shall have, by the tensor's name, where they are known. An
            artifact has them in its findings. Without them, a range that clips no more than
            calibrators do cannot be distinguished from one of theirs.
    """
    twins = find_twins(float_graph, quantized_graph)
    return judge_products(twins, sample_rows(quantized_graph, twins, batches), ranges)


def judge_products(
    twins: Iterable[Twins], samples: Mapping[str, Sample], ranges: Mapping[str, Range] = NO_RANGES
) -> tuple[ProductFindings, ...]:
    """Compare what was cut out of both graphs already; see `compare_products`."""
    return tuple(
        each
        for group in twins
        for each in (
            _tables(group)
            if group.is_table
            else _products(group, samples[group.start].spread, ranges.get(group.start))
        )
    )


def _tables(twins: Twins) -> Iterator[ProductFindings]:
    """Compare the rows of a table with the float ones."""
    rows = twins.table_rows()
    (actual,), (wanted,) = (run_cut(each, rows) for each in (twins.quantized, twins.floats))
    (part,) = twins.parts
    figures = _likeness("weights", actual, wanted)
    if not part.four_bits:  # one scale for all rows leaves little of small ones
        yield ProductFindings(part.node, "table", figures)
        return
    figures["worst_row_snr_db"] = float(_noise_ratios(actual, wanted, axis=1).min())
    steps = (actual - wanted) / _steps(twins.quantized, rows)
    figures["worst_row_offset"] = float(np.abs(steps.mean(axis=1)).max())
    yield ProductFindings(part.node, "4-bit table", figures)


def _steps(cut: onnx.ModelProto, rows: npt.NDArray[np.int64]) -> FloatArray:
    """Return what one more of its integer adds to each value of a 4-bit table: (rows, width)."""
    (lookup,) = (node for node in cut.graph.node if node.op_type == FOUR_BIT_LOOKUP)
    stored = {item.name: item for item in cut.graph.initializer}
    integers, scales = (stored[lookup.input[place]] for place in (0, 2))
    (size,) = (each.i for each in lookup.attribute if each.name == "block_size")
    wide = np.repeat(numpy_helper.to_array(scales)[rows], size, axis=1)
    width = VALUES_A_BYTE * int(integers.dims[1])
    return np.asarray(wide[:, :width])


def _products(
    twins: Twins, values: FloatArray, intended: Range | None
) -> Iterator[ProductFindings]:
    opened = _Opened(twins)
    wanted, actual, same = _outputs(opened, values)
    # without a sign, what a wrong zero point adds to each weight adds up
    _, unsigned, of_unsigned = _outputs(opened, np.abs(values))
    of_activation = _activation_figures(opened, values, intended)
    for place, part in enumerate(twins.parts):
        offset = _likeness("offset", unsigned[place], of_unsigned[place])
        figures = _likeness("weights", actual[place], same[place])
        figures["offset_snr_db"] = offset["offset_snr_db"]
        if not part.four_bits:
            figures |= _likeness("outputs", actual[place], wanted[place], of_each_row=True)
            figures |= of_activation
        yield ProductFindings(part.node, _kind(part), figures)


@dataclass(frozen=True)
class _Opened:
    """The cuts of twins, each opened once; freed with the object, for weights are large."""

    twins: Twins

    @cached_property
    def floats(self) -> RunCut:
        return open_cut(self.twins.floats)

    @cached_property
    def exactly(self) -> RunCut:
        return open_cut(exact(self.twins.quantized), optimize=False)

    @cached_property
    def rounding(self) -> RunCut | None:
        """The rounding of an activation before integer products; None where it is not rounded."""
        cut = rounded_activation(self.twins.quantized)
        return None if cut is None else open_cut(cut, optimize=False)


def _outputs(opened: _Opened, values: FloatArray) -> tuple[list[FloatArray], ...]:
    """Return what products compute without their biases: (float, quantized, float of rounded).

    What reads activations of 4-bit products is float: nothing is rounded before it.
    """
    wanted, actual = opened.floats(values), opened.exactly(values)
    same = wanted
    if opened.rounding is not None:
        (seen,) = opened.rounding(values)
        same = opened.floats(seen)
    parts = opened.twins.parts
    of_rounded = [
        plain if part.four_bits else rounded
        for part, plain, rounded in zip(parts, wanted, same, strict=True)
    ]
    return tuple(
        [array - bias for array, bias in zip(arrays, opened.twins.biases, strict=True)]
        for arrays in (wanted, actual, of_rounded)
    )


def _activation_figures(
    opened: _Opened, values: FloatArray, intended: Range | None
) -> dict[str, float]:
    """Return the figures of a static activation's scale and zero point."""
    written = static_activation(opened.twins.quantized)
    if written is None or opened.rounding is None:
        return {}
    (once,) = opened.rounding(values)
    (again,) = opened.rounding(once)
    largest = float(np.abs(once).max()) or 1.0
    figures = {"rounding_again": float(np.abs(again - once).max()) / largest}
    if intended is not None:
        scale, kind = written
        figures["range"] = scale / affine(*intended, INTEGERS[ACTIVATIONS[kind]]).scale
    return figures


def _kind(part: Part) -> str:
    return "4-bit" if part.four_bits else "8-bit"


def _likeness(
    name: str, actual: FloatArray, wanted: FloatArray, *, of_each_row: bool = False
) -> dict[str, float]:
    """Return the signal-to-noise ratio and the gain of outputs (rows, outputs).

    Args:
        name: how the figures' names begin.
        actual: the quantized part's.
        wanted: the float twin's.
        of_each_row: take the median of the rows. A calibrator that clips gives up the outliers of
            a few tokens, which are as large as all others together.
    """
    axis = 1 if of_each_row else None
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    signal = (wanted**2).sum(axis=axis)
    gains = np.where(signal > 0, (actual * wanted).sum(axis=axis) / np.maximum(signal, TINY), 1.0)
    return {
        f"{name}_snr_db": float(np.median(_noise_ratios(actual, wanted, axis))),
        f"{name}_gain": float(np.median(gains)),
    }


def _noise_ratios(
    actual: FloatArray, wanted: FloatArray, axis: int | None
) -> npt.NDArray[np.float64]:
    """Return signal-to-noise ratios in decibels: of all, or of each row with `axis` 1."""
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    signal, noise = (wanted**2).sum(axis=axis), ((actual - wanted) ** 2).sum(axis=axis)
    ratios = 10 * np.log10(np.maximum(signal, TINY) / np.maximum(noise, TINY))
    return np.where(noise > 0, ratios, NO_NOISE_DB)
