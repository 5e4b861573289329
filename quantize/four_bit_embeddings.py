"""Embedding tables of 4 bits in groups, all else as `dynamic`: for size, at no cost in time.

Half of a small encoder's bytes are its table of tokens, of which a text looks up a few rows. So
fewer bits cost no time there, while products of 4 bits do. Shen et al. 2020 (Q-BERT, arXiv
1909.05840) find embeddings more sensitive than other weights, and positions more than tokens: so
each `block_size` values of a row have a scale of their own, the one with the least squared error,
and small tables have 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from bertender.models.graph_file import MOST_MB, save_graph
from quantize.context import QuantizationContext, Written
from quantize.dynamic import quantize_nodes
from quantize.graph import FOUR_BIT_LOOKUP

__all__ = ["in_groups", "write_four_bit_embeddings"]

FloatArray = npt.NDArray[np.float32]
DOMAIN = "com.microsoft"
"""The set of operators that FOUR_BIT_LOOKUP is of."""
LEAST, MOST = -8, 7
"""Of the integers of 4 bits."""
WORTHWHILE = 0.5
"""Share of the largest table's values from which on a table gets 4 bits: every text reads the same
rows of small ones (positions, segments), whose error adds up, and they weigh little. Positions are
a tenth of a vocabulary that was cut to 5,000 tokens."""
CLIPPED = np.linspace(LEAST / -MOST, 0.5, 25)
"""Shares of a group's largest value to clip at, that are tried. From the first one on both signs
have it; at 1 the sign that has one integer more does."""


def write_four_bit_embeddings(context: QuantizationContext, target: Path) -> Written:
    """Quantize the float graph into `target`: tables to 4 bits, products as `dynamic` does."""
    inventory = context.inventory
    products = [each.node for each in inventory.products]
    small, large = _small_and_large(context)
    nodes = [*products, *inventory.lstms, *large]
    quantize_nodes(context.graph, target, nodes, context.target.weights)
    model = onnx.load(target)
    _replace_tables(model, small, context.config.block_size)
    save_graph(model, target, MOST_MB)
    quantized = (*products, *inventory.lstms)
    tables = {context.inventory.tables[name] for name in small}  # two texts look up in one
    return Written(quantized, context.reasons, tables_of_4_bits=len(tables))


def in_groups(table: FloatArray, size: int) -> tuple[npt.NDArray[np.int8], FloatArray]:
    """Return a table (rows, width) in integers of 4 bits, and its scales (rows, groups).

    Of several scales, a group has the one with the least squared error.
    """
    rows, width = table.shape
    padded = np.pad(table, ((0, 0), (0, -width % size))).reshape(rows, -1, size)
    lowest, highest = padded.min(axis=-1), padded.max(axis=-1)
    # the side of the larger value has the integer more
    largest = np.where(-lowest > highest, lowest, highest)
    scales = np.ones_like(largest)
    least = np.full_like(largest, np.inf)
    for share in CLIPPED:
        tried = np.where(largest == 0, 1.0, largest / LEAST * share).astype(np.float32)
        error = np.square(_rounded(padded, tried) * tried[..., None] - padded).sum(axis=-1)
        scales = np.where(error < least, tried, scales)
        least = np.minimum(error, least)
    return _rounded(padded, scales).astype(np.int8).reshape(rows, -1)[:, :width], scales


def _rounded(groups: FloatArray, scales: FloatArray) -> FloatArray:
    return np.clip(np.rint(groups / scales[..., None]), LEAST, MOST)


def _small_and_large(context: QuantizationContext) -> tuple[list[str], list[str]]:
    """Return the look-ups in tables that get 4 bits, and those in tables that get 8."""
    graph = onnx.load(context.graph, load_external_data=False).graph
    shapes = {item.name: tuple(item.dims) for item in graph.initializer}
    tables = {lookup: shapes[context.inventory.tables[lookup]] for lookup in context.tables}
    enough = WORTHWHILE * max(map(math.prod, tables.values()), default=0)
    small = [
        lookup
        for lookup, shape in tables.items()
        if math.prod(shape) >= enough and shape[-1] % 2 == 0  # rows of whole bytes
    ]
    return small, [lookup for lookup in tables if lookup not in small]


def _replace_tables(model: onnx.ModelProto, lookups: Sequence[str], size: int) -> None:
    """Make look-ups of few bits of some look-ups, and drop the tables that nothing reads then."""
    graph = model.graph
    tables = {item.name: item for item in graph.initializer}
    nodes = [node for node in graph.node if node.name in lookups]
    names = dict.fromkeys(node.input[0] for node in nodes)
    for name in names:
        graph.initializer.extend(_packed(name, numpy_helper.to_array(tables[name]), size))
    for node in nodes:
        node.CopyFrom(_lookup(node, size))
    read = {name for node in graph.node for name in node.input}
    for name in names.keys() - read:
        graph.initializer.remove(tables[name])
    if DOMAIN not in {each.domain for each in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


def _packed(name: str, table: FloatArray, size: int) -> Iterator[onnx.TensorProto]:
    """Yield a table's integers, two a byte with the first one low, and its scales."""
    integers, scales = in_groups(table, size)
    nibbles = (integers - LEAST).astype(np.uint8)
    yield numpy_helper.from_array(nibbles[:, ::2] | nibbles[:, 1::2] << 4, f"{name}_4_bits")
    yield numpy_helper.from_array(scales, f"{name}_scales")


def _lookup(node: onnx.NodeProto, size: int) -> onnx.NodeProto:
    name, rows = node.input
    return helper.make_node(
        FOUR_BIT_LOOKUP,
        [f"{name}_4_bits", rows, f"{name}_scales"],
        [node.output[0]],
        name=node.name,
        domain=DOMAIN,
        bits=4,
        block_size=size,
        gather_axis=0,
        quantize_axis=1,
    )
