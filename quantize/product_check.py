"""Check of each quantized product and table against the float one, on its own inputs.

A wrong scale in one product of forty may change no prediction. Here each product is compared
separately with its float product: a fault costs more than the known cost of rounding. Weights and
outputs are judged separately. For the weights, the float product reads the rounded activations, so
that only the weights differ; for the outputs, it reads the float activations.

Sums are checked too: x86 CPUs without 8-bit dot products sum pairs of products in 16 bits, which
saturates without an error. A whole model's logits show less: over twelve layers, rounding errors
exceed those of saturation in one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from bertender.core.errors import GateError, UnsoundGraphError
from bertender.core.findings import PartLikeness, ProductCheck, SaturationFindings
from quantize.context import ROWS, Batches, observed, spaced
from quantize.graph import (
    FOUR_BIT_LOOKUP,
    Inventory,
    constants_of,
    in_float64,
    nodes_between,
    open_subgraph,
    rounded_activation,
    run_subgraph,
    static_activation,
    subgraph,
    take_inventory,
)
from quantize.integers import INTEGERS, Range, affine

FloatArray = npt.NDArray[np.floating[Any]]
TABLE_ROWS = 8192
"""Most rows to look up in an embedding table."""
FOUR_BITS = frozenset({"MatMulNBits", FOUR_BIT_LOOKUP})
QUANTIZED = FOUR_BITS | {"MatMulInteger", "DequantizeLinear"}
"""Operators that only quantized parts have."""
ACTIVATIONS = {"uint8": "uint8", "int8": "int8-symmetric"}
"""Type of the integers -> row of INTEGERS."""
VALUES_A_BYTE = 2
"""Values per byte of a 4-bit table."""
TINY = 1e-20
"""Replaces a sum of squares of 0."""
NO_NOISE_DB = 200.0
"""Signal-to-noise ratio of equal outputs, including zeros."""
MOST_SATURATION = 1e-3
"""Largest difference of a product's outputs, relative to the largest of them."""
NO_RANGES: Mapping[str, Range] = {}
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
"""Row of BOUNDS -> likely fault, and next step."""
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
"""Bounds for a healthy part: figure -> smallest and largest value.

Measured on encoders of 6 x 384, fine-tuned on SST-2, CoLA and MRPC (seed 7), 41 parts each: dynamic
with 8 and 7 bits, static with every calibrator and with 99.9 %, signed activations, 4-bit weights
in groups of 32, 128 and 256. Lowest ratios, lowest and highest gains:

    8-bit   weights 32.4 dB, 0.998 to 1.006, offset 26.4 dB; outputs 9.6 dB, 0.904 to 1.036
    4-bit   weights 16.5 dB, 0.992 to 1.006, offset 13.6 dB
    table   20.4 dB, 0.9998 to 1.0006

4-bit tables of these encoders, a 12 x 768 one and a static student, in groups of 16 to 256: 11.7 to
22.7 dB and 0.932 to 0.991. The static student's table in the largest groups is by far the worst,
and the scale with the smallest squared error is a little too small for the largest values. Its
worst row has 7.7 dB and those of the others 8.9 or more; a row of another token, or with another
token's scales, has less than 0, which would not show in the whole table's ratio if few rows are
wrong.

If all integers of such a table are one too high, it has 10.1 to 10.3 dB in groups of 32, and a gain
of 0.95: within the bounds that the static student needs. The step is not a constant that a layer
norm would remove, since groups have scales of either sign. `worst_row_offset` is the mean error of
a row in its own steps: over whole tables, sound ones have at most 0.006 and wrong ones at least
0.98; single rows of a 6 x 384 encoder, in groups of 16 and 32, have at most 0.056 and at least
0.91.

A weight scale that is off by a tenth has a gain of 1.1 and 20 dB. `weights` are checked on inputs
with random signs, which do not cancel (measured so on MRPC and STS-B). If pooled states are all
alike and the weights of a single output, a score, are orthogonal to them, little but rounding is
left: with the original signs, one in twenty sound columns of 32 random weights had a gain beyond
0.96 to 1.04, and with random signs 0.997 to 1.004. `offset` is for the weights too, on inputs
without signs, which reveal a wrong zero point. Outputs have the widest bounds, and are refused for
little but more noise than signal. Calibrators clip on purpose, some of them most of a few tokens'
values; and if a neuron fires far above all others, rounding removes most of the rest: a dynamic 12
x 768 encoder has outputs of 3.4 dB and 0.566 in one layer, with normal weights.
`range` is the scale over that of the calibrated range, and `rounding_again` the change when rounded
values are rounded again, over the largest; 0 if both halves of a pair agree.
"""


@dataclass(frozen=True)
class Part:
    """A product, or a table look-up."""

    node: str
    """Its name in the float graph."""
    end: str
    """Its output tensor, in both graphs."""
    four_bits: bool

    @property
    def kind(self) -> str:
        """Row of BOUNDS for a product."""
        return "4-bit" if self.four_bits else "8-bit"


@dataclass(frozen=True)
class Parts:
    """The quantized parts with the same input tensor, and the same parts in float.

    Products of the same activation are cut out together: ONNX Runtime rounds it once for all of
    them, as in the whole graph.
    """

    start: str
    """The activation; for a table, the row indices."""
    parts: tuple[Part, ...]
    float_model: onnx.ModelProto
    quantized_model: onnx.ModelProto
    inputs: int
    """Inputs of each product; rows of a table."""
    is_table: bool = False

    @cached_property
    def quantized(self) -> onnx.ModelProto:
        """The sub-graph of the quantized graph."""
        return self._cut(self.quantized_model)

    @cached_property
    def floats(self) -> onnx.ModelProto:
        """The sub-graph of the float graph."""
        return self._cut(self.float_model)

    def _cut(self, model: onnx.ModelProto) -> onnx.ModelProto:
        ends = [part.end for part in self.parts]
        if self.is_table:
            return subgraph(model, self.start, ends, ["rows"], TensorProto.INT64)
        return subgraph(model, self.start, ends, ["rows", self.inputs], TensorProto.FLOAT)

    @cached_property
    def biases(self) -> list[FloatArray]:
        """The bias of each float product, its output for zeros: (1, outputs)."""
        return run_subgraph(self.floats, np.zeros((1, self.inputs), dtype=np.float32))

    def table_rows(self) -> npt.NDArray[np.int64]:
        """Return row indices of a table, evenly spaced."""
        return np.linspace(0, self.inputs - 1, min(TABLE_ROWS, self.inputs)).astype(np.int64)


def find_parts(float_graph: Path, quantized_graph: Path) -> tuple[Parts, ...]:
    """Return the parts of a float graph that are integers in its quantized graph.

    LSTMs are left out: their products cannot be cut out.
    """
    inventory: Inventory = take_inventory(float_graph)
    floats, quantized = onnx.load(float_graph), onnx.load(quantized_graph)
    nodes = {node.name: node for node in floats.graph.node}

    def quantized_parts(start: str, names: Sequence[str]) -> Iterator[Part]:
        for name in names:
            end = nodes[name].output[0]
            operators = {each.op_type for each in nodes_between(quantized, [start], [end])}
            if operators & QUANTIZED:
                yield Part(name, end, four_bits=bool(operators & FOUR_BITS))

    products = (*inventory.products, *inventory.of_constants)
    readers: dict[str, list[str]] = {}
    for product in products:
        readers.setdefault(product.activation, []).append(product.node)
    inputs = {product.activation: product.inputs for product in products}
    sizes = {item.name: item.dims[0] for item in floats.graph.initializer if item.dims}
    found = [
        Parts(start, tuple(quantized_parts(start, names)), floats, quantized, inputs[start])
        for start, names in readers.items()
    ]
    for name, table in inventory.tables.items():
        rows = nodes[name].input[1]
        parts = tuple(quantized_parts(rows, [name]))
        found.append(Parts(rows, parts, floats, quantized, sizes[table], is_table=True))
    return tuple(each for each in found if each.parts)


@dataclass(frozen=True)
class Sample:
    """Rows of an activation: (rows, inputs)."""

    spread: FloatArray
    """Rows drawn evenly from all texts."""
    largest: FloatArray
    """Rows with the largest sums, and so the largest integers: they saturate first."""


def sample_rows(graph: Path, groups: Iterable[Parts], batches: Batches) -> dict[str, Sample]:
    """Return rows of the input activations of quantized products, by tensor name.

    Only a few rows per batch are kept, so that memory is that of one batch.
    """
    inputs = {each.start: each.inputs for each in groups if not each.is_table}
    samples: dict[str, Sample] = {}
    for values in observed(graph, [*inputs], batches) if inputs else ():
        for name, array in values.items():
            rows = array.reshape(-1, inputs[name])
            before = samples.get(name, Sample(rows[:0], rows[:0]))
            candidates = np.concatenate([before.largest, rows])
            # the largest integers grow with the values, negative or not
            order = np.argsort(-candidates.sum(axis=1), kind="stable")[:ROWS]
            spread = np.concatenate([before.spread, spaced(rows)])
            samples[name] = Sample(spread, np.asarray(candidates[order]))
    return {name: Sample(spaced(each.spread), each.largest) for name, each in samples.items()}


@dataclass(frozen=True)
class ProductFindings:
    """Figures of a quantized product or table, relative to the float one."""

    node: str
    """Its name in the float graph."""
    kind: str
    """A row of BOUNDS."""
    figures: Mapping[str, float]
    """Figures by their names in BOUNDS: signal-to-noise ratios, and gains, which are <actual,
    wanted> / <wanted, wanted>: 1.1 if a scale is a tenth too large."""

    @property
    def failures(self) -> tuple[str, ...]:
        """Every figure out of bounds, as text; empty for a healthy product."""
        failures = []
        for name, value in self.figures.items():
            low, high = BOUNDS[self.kind][name]
            if not low <= value <= high:
                allowed = f"at least {low:g}" if high == NO_LIMIT else f"{low:g} to {high:g}"
                failures.append(f"{name} is {value:.4g}, allowed is {allowed}")
        return tuple(failures)


def compare_products(
    groups: Iterable[Parts], samples: Mapping[str, Sample], ranges: Mapping[str, Range] = NO_RANGES
) -> tuple[ProductFindings, ...]:
    """Compare each quantized product and table of a graph with the float one.

    Args:
        groups: parts from `find_parts`. Sums are computed exactly, on any CPU.
        samples: rows from `sample_rows`: real texts' activations in the quantized graph.
        ranges: calibrated ranges of static activations, by tensor name, as in an artifact's
            findings. Without them, a wrong range that clips no more than calibrators do passes.
    """
    return tuple(
        each
        for group in groups
        for each in (
            (_compare_table(group),)
            if group.is_table
            else _compare_group(group, samples[group.start].spread, ranges.get(group.start))
        )
    )


def _compare_table(group: Parts) -> ProductFindings:
    """Compare the rows of a table with the float rows."""
    rows = group.table_rows()
    (actual,), (wanted,) = (run_subgraph(each, rows) for each in (group.quantized, group.floats))
    (part,) = group.parts
    figures = _likeness("weights", actual, wanted)
    if not part.four_bits:  # with one scale for all rows, small rows round to nothing
        return ProductFindings(part.node, "table", figures)
    figures["worst_row_snr_db"] = float(_noise_ratios(actual, wanted, axis=1).min())
    (lookup,) = (node for node in group.quantized.graph.node if node.op_type == FOUR_BIT_LOOKUP)
    stored = constants_of(group.quantized)
    integers, scales = (stored[lookup.input[place]] for place in (0, 2))
    (size,) = (each.i for each in lookup.attribute if each.name == "block_size")
    wide = np.repeat(numpy_helper.to_array(scales)[rows], size, axis=1)
    steps = wide[:, : VALUES_A_BYTE * int(integers.dims[1])]  # of one integer: (rows, width)
    offsets = ((actual - wanted) / steps).mean(axis=1)
    figures["worst_row_offset"] = float(np.abs(offsets).max())
    return ProductFindings(part.node, "4-bit table", figures)


def _compare_group(
    group: Parts, values: FloatArray, intended: Range | None
) -> Iterator[ProductFindings]:
    """Compare the products of an activation with rows `values`."""
    floats = open_subgraph(group.floats)
    exactly = open_subgraph(in_float64(group.quantized), optimize=False)
    rounding = rounded_activation(group.quantized)
    round_values = None if rounding is None else open_subgraph(rounding, optimize=False)

    def outputs(values: FloatArray) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
        """Yield outputs without bias of each product: float, quantized, float of rounded values."""
        wanted, actual = floats(values), exactly(values)
        of_rounded = wanted if round_values is None else floats(round_values(values)[0])
        rows = zip(group.parts, wanted, actual, of_rounded, group.biases, strict=True)
        for part, plain, quantized, same, bias in rows:
            # 4-bit products read float activations
            yield plain - bias, quantized - bias, (plain if part.four_bits else same) - bias

    of_activation: dict[str, float] = {}
    static = static_activation(group.quantized)
    if static is not None and round_values is not None:
        (once,) = round_values(values)
        (again,) = round_values(once)
        largest = float(np.abs(once).max()) or 1.0
        of_activation["rounding_again"] = float(np.abs(again - once).max()) / largest
        if intended is not None:
            scale, kind = static
            wanted_scale = affine(*intended, INTEGERS[ACTIVATIONS[kind]]).scale
            of_activation["range"] = scale / wanted_scale
    # with random signs, inputs of a product do not cancel, which would leave only rounding in a
    # single output, such as a passage's score; without signs, the error of a wrong zero point adds
    # up
    signs = np.random.default_rng(0).choice(np.array([-1, 1], np.float32), values.shape)
    given = (values, values * signs, np.abs(values))
    rows = zip(group.parts, *map(outputs, given), strict=True)
    for part, (wanted, actual, _), (_, signed, same_signed), (_, unsigned, same_unsigned) in rows:
        offset = _likeness("offset", unsigned, same_unsigned)
        figures = _likeness("weights", signed, same_signed)
        figures["offset_snr_db"] = offset["offset_snr_db"]
        if not part.four_bits:
            figures |= _likeness("outputs", actual, wanted, of_each_row=True)
            figures |= of_activation
        yield ProductFindings(part.node, part.kind, figures)


def _likeness(
    name: str, actual: FloatArray, wanted: FloatArray, *, of_each_row: bool = False
) -> dict[str, float]:
    """Return the signal-to-noise ratio and the gain of outputs (rows, outputs).

    Args:
        name: prefix of the figures' names.
        actual: outputs of the quantized part.
        wanted: outputs of the float part.
        of_each_row: take the median over rows. A clipping calibrator gives up the outliers of a few
            tokens, which are as large as all others together.
    """
    axis = 1 if of_each_row else None
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    signal = (wanted**2).sum(axis=axis)
    gains = np.where(signal == 0, 1.0, (actual * wanted).sum(axis=axis) / np.maximum(signal, TINY))
    return {
        f"{name}_snr_db": float(np.median(_noise_ratios(actual, wanted, axis))),
        f"{name}_gain": float(np.median(gains)),
    }


def _noise_ratios(
    actual: FloatArray, wanted: FloatArray, axis: int | None
) -> npt.NDArray[np.float64]:
    """Return signal-to-noise ratios in decibels: of all rows, or of each row with `axis` 1."""
    actual, wanted = actual.astype(np.float64), wanted.astype(np.float64)
    signal, noise = (wanted**2).sum(axis=axis), ((actual - wanted) ** 2).sum(axis=axis)
    ratios = 10 * np.log10(np.maximum(signal, TINY) / np.maximum(noise, TINY))
    return np.where(noise == 0, NO_NOISE_DB, ratios)


def check_products(findings: Sequence[ProductFindings]) -> ProductCheck:
    """Return the findings for the artifact's card: the number of parts, and the noisiest few.

    Raises:
        GateError: a product is out of bounds; the message names the worst few.
    """
    failed = [each for each in findings if each.failures]
    if failed:
        listed = "; ".join(f"{each.node}: {', '.join(each.failures)}" for each in failed[:SHOWN])
        steps = " ".join(dict.fromkeys(WRONG[each.kind] for each in failed))
        raise GateError(
            f"{len(failed)} of {len(findings)} quantized products and tables differ from the float "
            f"ones. {listed}. {steps}"
        )

    def worst_ratio(found: ProductFindings) -> float:
        return min(value for name, value in found.figures.items() if name.endswith("_snr_db"))

    worst = sorted(findings, key=worst_ratio)[:SHOWN]
    likeness = {each.node: PartLikeness(kind=each.kind, figures=each.figures) for each in worst}
    return ProductCheck(checked=len(findings), worst=likeness)


Run = Callable[[onnx.ModelProto, FloatArray], Sequence[FloatArray]]
"""(sub-graph, values of its input) -> outputs"""


def check_sums(
    groups: Iterable[Parts], samples: Mapping[str, Sample], run: Run = run_subgraph
) -> SaturationFindings:
    """Compare the sums of each integer product, in its serving kernels, with float64.

    Returns:
        The largest deviation. MatMulNBits and LSTMs, which round inside, are left out.

    Raises:
        UnsoundGraphError: this CPU does not sum them exactly.
    """
    deviations: dict[str, float] = {}
    for group in groups:
        if group.is_table or all(part.four_bits for part in group.parts):
            continue
        values = samples[group.start].largest
        if static_activation(group.quantized) and (rounded := rounded_activation(group.quantized)):
            # a value between two steps may be rounded either way, by division or by multiplication
            # with the scale's inverse, which is not an error in the sums
            (values,) = run_subgraph(rounded, values, optimize=False)
        actual = run(group.quantized, values)
        wanted = run_subgraph(in_float64(group.quantized), values, optimize=False)
        for part, ours, exact, bias in zip(group.parts, actual, wanted, group.biases, strict=True):
            if not part.four_bits:
                largest = float(np.abs(exact - bias).max()) or 1.0
                deviations[part.node] = float(np.abs(ours - exact).max()) / largest
    check_saturation(deviations)
    worst = max(deviations, key=lambda node: deviations[node], default=None)
    return SaturationFindings(
        products=len(deviations),
        rows=max((len(each.largest) for each in samples.values()), default=0),
        largest_deviation=None if worst is None else deviations[worst],
        worst=worst,
        allowed=MOST_SATURATION,
    )


def check_saturation(deviations: Mapping[str, float]) -> None:
    """Raise UnsoundGraphError if a product's sums deviate too far from exact ones."""
    beyond = {node: value for node, value in deviations.items() if not value <= MOST_SATURATION}
    if beyond:
        worst = max(beyond, key=lambda node: beyond[node])
        raise UnsoundGraphError(
            f"this CPU does not add 8-bit products exactly: outputs of {worst} are off by "
            f"{beyond[worst]:.2g} of the largest, allowed is {MOST_SATURATION:g} ({len(beyond)} "
            "product(s) beyond it). Its instructions saturate in 16 bits. Give --target avx2, "
            "whose weights of 7 bits do not; if it is set already, serve the float model here."
        )
