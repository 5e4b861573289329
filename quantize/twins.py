"""The quantized parts of a graph, each with its float twin, on activations of real text.

The products that read one activation are cut out together: ONNX Runtime rounds it once for all of
them, as it does in the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto

from quantize.calibration import Batches, observed
from quantize.cuts import cut_out, nodes_between, run_cut
from quantize.graph import FOUR_BIT_LOOKUP, Inventory, take_inventory

__all__ = ["ROWS", "Part", "Sample", "Twins", "find_twins", "sample_rows"]

FloatArray = npt.NDArray[np.float32]
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
    def biases(self) -> list[FloatArray]:
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
    return (*_products(inventory, *models), *_tables(inventory, *models))


def _products(
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


def _tables(
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

    spread: FloatArray
    """From all over the texts."""
    largest: FloatArray
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


def _spread(rows: FloatArray) -> FloatArray:
    return np.asarray(rows[np.linspace(0, len(rows) - 1, min(ROWS, len(rows))).astype(int)])


def _largest(rows: FloatArray) -> FloatArray:
    """Return the rows of the largest integers: these grow with the values, less than 0 or not."""
    return np.asarray(rows[np.argsort(-rows.sum(axis=1), kind="stable")[:ROWS]])
