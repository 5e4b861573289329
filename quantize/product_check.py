"""Check of each quantized product and table against the float one, on its own inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from bertender.core.errors import GateError
from bertender.core.findings import PartLikeness, ProductCheck
from quantize.context import Batches, observed
from quantize.graph import (
    FOUR_BIT_LOOKUP,
    Inventory,
    RunCut,
    cut_out,
    exact,
    nodes_between,
    open_cut,
    rounded_activation,
    run_cut,
    static_activation,
    take_inventory,
)
from quantize.integers import INTEGERS, Range, affine

# --- from quantize.twins
# The quantized parts of a graph, each with its float twin, on activations of real text.
#
# The products that read one activation are cut out together: ONNX Runtime rounds it once for all
# of
# them, as it does in the whole graph.

FloatArray_twins = npt.NDArray[np.float32]
ROWS = 256
"""Of an activation, at most, that its products are judged on: tokens, or pooled states."""
TABLE_ROWS = 8192
"""Of an embedding table, at most, that are looked up."""
FOUR_BITS = frozenset({"MatMulNBits", FOUR_BIT_LOOKUP})
QUANTIZED = FOUR_BITS | {"MatMulInteger", "DequantizeLinear"}
"""Operators that only a quantized part has."""


@dataclass(frozen=True)
class Part:
    """A product, or a look-up in a table."""

    node: str
    """Its name in the float graph."""
    end: str
    """The tensor that it computes, in both graphs."""
    operators: frozenset[str]
    """Of its quantized form, as it was written."""

    @property
    def four_bits(self) -> bool:
        return not FOUR_BITS.isdisjoint(self.operators)


@dataclass(frozen=True)
class Twins:
    """The quantized parts that read one tensor, and the same parts in float."""

    start: str
    """The activation; of a table, the rows to look up."""
    parts: tuple[Part, ...]
    float_model: onnx.ModelProto
    quantized_model: onnx.ModelProto
    inputs: int
    """Of each product; the rows of a table."""
    is_table: bool = False

    @cached_property
    def quantized(self) -> onnx.ModelProto:
        """The cut of the quantized graph."""
        return self._cut(self.quantized_model)

    @cached_property
    def floats(self) -> onnx.ModelProto:
        """The cut of the float graph."""
        return self._cut(self.float_model)

    @cached_property
    def biases(self) -> list[FloatArray_twins]:
        """The bias of each float product, its output for zeros: (1, outputs)."""
        return run_cut(self.floats, np.zeros((1, self.inputs), dtype=np.float32))

    def table_rows(self) -> npt.NDArray[np.int64]:
        """Return the numbers of rows of a table, evenly spaced."""
        return np.linspace(0, self.inputs - 1, min(TABLE_ROWS, self.inputs)).astype(np.int64)

    def _cut(self, model: onnx.ModelProto) -> onnx.ModelProto:
        ends = [part.end for part in self.parts]
        if self.is_table:
            return cut_out(model, self.start, ends, ["rows"], TensorProto.INT64)
        return cut_out(model, self.start, ends, ["rows", self.inputs], TensorProto.FLOAT)


def find_twins(float_graph: Path, quantized_graph: Path) -> tuple[Twins, ...]:
    """Return what a quantized graph has in integers of the float graph that it was made of.

    LSTMs are left out: their products cannot be cut out of them.
    """
    inventory = take_inventory(float_graph)
    models = onnx.load(float_graph), onnx.load(quantized_graph)
    return (*_products_twins(inventory, *models), *_tables_twins(inventory, *models))


def _products_twins(
    inventory: Inventory, floats: onnx.ModelProto, quantized: onnx.ModelProto
) -> Iterator[Twins]:
    ends = {node.name: node.output[0] for node in floats.graph.node}
    products = (*inventory.products, *inventory.of_constants)
    readers: dict[str, list[str]] = {}
    for product in products:
        readers.setdefault(product.activation, []).append(product.node)
    inputs = {product.activation: product.inputs for product in products}
    for start, nodes in readers.items():
        if parts := _parts(quantized, start, {node: ends[node] for node in nodes}):
            yield Twins(start, parts, floats, quantized, inputs[start])


def _tables_twins(
    inventory: Inventory, floats: onnx.ModelProto, quantized: onnx.ModelProto
) -> Iterator[Twins]:
    nodes = {node.name: node for node in floats.graph.node}
    sizes = {item.name: item.dims[0] for item in floats.graph.initializer if item.dims}
    for name, table in inventory.tables.items():
        rows, end = nodes[name].input[1], nodes[name].output[0]
        if parts := _parts(quantized, rows, {name: end}):
            yield Twins(rows, parts, floats, quantized, sizes[table], is_table=True)


def _parts(quantized: onnx.ModelProto, start: str, ends: Mapping[str, str]) -> tuple[Part, ...]:
    """Return those that are quantized of some nodes, by their names and outputs."""
    parts = (
        Part(
            node, end, frozenset(each.op_type for each in nodes_between(quantized, [start], [end]))
        )
        for node, end in ends.items()
    )
    return tuple(part for part in parts if part.operators & QUANTIZED)


@dataclass(frozen=True)
class Sample:
    """Rows of an activation: (rows, inputs)."""

    spread: FloatArray_twins
    """From all over the texts."""
    largest: FloatArray_twins
    """Those of the largest sums, and so of the largest integers: they saturate first."""


def sample_rows(graph: Path, twins: Iterable[Twins], batches: Batches) -> dict[str, Sample]:
    """Return rows of the input activations of quantized products, by the tensor's name.

    Of each batch no more than a few rows stay, so that memory is that of one batch.
    """
    inputs = {each.start: each.inputs for each in twins if not each.is_table}
    samples: dict[str, Sample] = {}
    for values in observed(graph, [*inputs], batches) if inputs else ():
        for name, array in values.items():
            rows = array.reshape(-1, inputs[name])
            before = samples.get(name, Sample(rows[:0], rows[:0]))
            samples[name] = Sample(
                np.concatenate([before.spread, _spread(rows)]),
                _largest(np.concatenate([before.largest, rows])),
            )
    return {name: Sample(_spread(each.spread), each.largest) for name, each in samples.items()}


def _spread(rows: FloatArray_twins) -> FloatArray_twins:
    return np.asarray(rows[np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int)])


def _largest(rows: FloatArray_twins) -> FloatArray_twins:
    """Return the rows of the largest integers: these grow with the values, less than 0 or not."""
    return np.asarray(rows[np.argsort(-rows.sum(axis=1), kind="stable")[:ROWS]])


# --- from quantize.part_findings
# BOUNDS: the figures of a healthy quantized part, and the findings that are held against them.

SHOWN = 5
NO_LIMIT = float("inf")
WRONG_PRODUCT = (
    "The graph's scales or weights are wrong there, or its activations are clipped: quantize "
    "again, with another --calibrator or --scheme."
)
WRONG: Mapping[str, str] = {
    "8-bit": WRONG_PRODUCT,
    "4-bit": WRONG_PRODUCT,
    "table": "A table of 8 bits has one scale for all of its rows: leave tables in float, with "
    "--no-embeddings.",
    "4-bit table": "Its integers or scales are wrong, or a group of its values has few steps: "
    "quantize again, with a smaller --block-size, or --scheme dynamic.",
}
"""Row of BOUNDS -> what may be wrong, and the next step."""
BOUNDS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "8-bit": {
        "weights_snr_db": (18.0, NO_LIMIT),
        "weights_gain": (0.96, 1.04),
        "offset_snr_db": (10.0, NO_LIMIT),
        "outputs_snr_db": (-1.0, NO_LIMIT),
        "outputs_gain": (0.0, 1.5),
        "rounding_again": (0.0, 1e-3),
        "range": (0.98, 1.02),
    },
    "4-bit": {
        "weights_snr_db": (10.0, NO_LIMIT),
        "weights_gain": (0.96, 1.04),
        "offset_snr_db": (5.0, NO_LIMIT),
    },
    "table": {"weights_snr_db": (12.0, NO_LIMIT), "weights_gain": (0.96, 1.04)},
    "4-bit table": {
        "weights_snr_db": (10.0, NO_LIMIT),
        "weights_gain": (0.92, 1.04),
        "worst_row_snr_db": (3.0, NO_LIMIT),
        "worst_row_offset": (0.0, 0.5),
    },
}
"""Bounds of a healthy part: figure -> the least and the most.

Measured on encoders of 6 x 384, fine-tuned on SST-2, CoLA and MRPC (seed 7), 41 parts each:
dynamic with 8 and 7 bits, static with every calibrator and with 99.9 %, signed activations, weights
of 4 bits in groups of 32, 128 and 256. Ratios lowest, gains lowest and highest:

    8-bit   weights 30.6 dB, 0.998 to 1.003, offset 26.4 dB; outputs 9.6 dB, 0.904 to 1.036
    4-bit   weights 16.5 dB, 0.992 to 1.006, offset 13.6 dB
    table   20.4 dB, 0.9998 to 1.0006

Tables of 4 bits, of these encoders, a 12 x 768 one and a static student, in groups of 16 to 256:
11.7 to 22.7 dB and 0.932 to 0.991; the static student's in the largest groups is the worst by far,
and the scale of least squared error is a little too small for the largest values. Its worst row has
7.7 dB and those of the others 8.9 or more; a row of another token, or with another token's scales,
has less than 0, which is lost in the whole table's ratio if few rows are wrong.

Integers of such a table that are all one too high leave it 10.1 to 10.3 dB in groups of 32, and a
gain of 0.95: within bounds that the static student needs. A step is no constant that a layer norm
would take out, since groups have scales of either sign. `worst_row_offset` is the mean error of a
row in its own steps: over whole tables, sound ones have 0.006 at most and those have 0.98 or more;
single rows of a 6 x 384 encoder, in groups of 16 and 32, have 0.056 at most and 0.91 or more.

A weight scale that is a tenth off has a gain of 1.1 and 20 dB. `offset` is of the weights too, on
inputs without a sign, among which a wrong zero point shows. Outputs have the widest bounds, and
refuse little but more noise than signal. Calibrators clip on purpose, some of them most of what a
few tokens have; and where a neuron fires far above all others, rounding takes most of the rest: a
dynamic 12 x 768 encoder has outputs of 3.4 dB and 0.566 in one layer, and weights as all others.
`range` is the scale over that of the range that was calibrated, and `rounding_again` what
rounding changes of values that are rounded already, over the largest; where both halves of a pair
agree, nothing.
"""


@dataclass(frozen=True)
class ProductFindings:
    """Figures of a quantized product, or a quantized table, against its float twin."""

    node: str
    """Its name in the float graph."""
    kind: str
    """A row of BOUNDS."""
    figures: Mapping[str, float]
    """By their names in BOUNDS: signal-to-noise ratios, and gains, which are <actual, wanted> /
    <wanted, wanted>: 1.1 where a scale is a tenth too large."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Every figure that is out of bounds, in words; empty for a healthy product."""
        bounds = BOUNDS[self.kind]
        return tuple(
            f"{name} is {value:.4g}, allowed is {_words(*bounds[name])}"
            for name, value in self.figures.items()
            if not bounds[name][0] <= value <= bounds[name][1]
        )


def _words(low: float, high: float) -> str:
    return f"at least {low:g}" if high == NO_LIMIT else f"{low:g} to {high:g}"


def check_products(findings: Sequence[ProductFindings]) -> None:
    """Raise GateError where a product is out of bounds; it names the worst few."""
    failed = [each for each in findings if each.failures]
    if failed:
        listed = "; ".join(f"{each.node}: {', '.join(each.failures)}" for each in failed[:SHOWN])
        steps = " ".join(dict.fromkeys(WRONG[each.kind] for each in failed))
        raise GateError(
            f"{len(failed)} of {len(findings)} quantized products and tables do not compute what "
            f"their float twins do. {listed}. {steps}"
        )


def summary_of(findings: Sequence[ProductFindings]) -> ProductCheck:
    """Return their findings for the artifact: how many there are, and the worst few by noise."""
    worst = sorted(findings, key=lambda each: min(_ratios(each)))[:SHOWN]
    likeness = {each.node: PartLikeness(kind=each.kind, figures=each.figures) for each in worst}
    return ProductCheck(checked=len(findings), worst=likeness)


def _ratios(findings: ProductFindings) -> list[float]:
    return [value for name, value in findings.figures.items() if name.endswith("_snr_db")]


# --- from quantize.products
# Check of each quantized product against its float twin, on the product's own inputs.
#
# A wrong scale in one product of forty need not turn a prediction. Here each product is compared
# with
# its twin alone: what rounding costs a healthy one is known, and a fault costs more. Its weights
# and
# its outputs are judged apart. For the weights, the twin reads the activations as they were
# rounded,
# so that nothing but the weights differs; for the outputs, it reads them as they were.

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
