"""Embedding tables of 4 bits in groups, in a graph and in a model that is trained.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840) find embeddings more sensitive than other weights, and
positions more than tokens: so some values of a row (`block_size`) have a scale of their own, the
one with the least squared error, and small tables have 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper

from bertender.models.graph_file import MOST_MB, save_graph
from bertender.models.graph_optimizer import RUNTIME_DOMAIN, add_runtime_domain
from quantize.context import QuantizationContext
from quantize.fake_quantization import RowRounding, straight_through
from quantize.graph import FOUR_BIT_LOOKUP

__all__ = ["in_groups", "large_tables", "round_in_groups", "write_in_groups"]

FloatArray = npt.NDArray[np.float32]
LEAST, MOST = -8, 7
"""Of the integers of 4 bits."""
WORTHWHILE = 0.5
"""Share of the largest table's values from which on a table gets 4 bits: every text reads the same
rows of small ones (positions, segments), whose error adds up, and they weigh little. Positions are
a tenth of a vocabulary that was cut to 5,000 tokens."""
CLIPPED = np.linspace(LEAST / -MOST, 0.5, 25)
"""Shares of a group's largest value to clip at, that are tried. From the first one on both signs
have it; at 1 the sign that has one integer more does."""


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


def round_in_groups(size: int) -> RowRounding:
    """Return what rounds looked-up rows as `in_groups` rounds the whole table."""

    def rounded(
        table: torch.nn.Embedding, numbers: torch.Tensor, rows: torch.Tensor
    ) -> torch.Tensor:
        distinct, places = numbers.unique(return_inverse=True)  # a text repeats its tokens
        values = table.weight.detach()[distinct].cpu().numpy()
        integers, scales = in_groups(values, size)
        left = integers * scales.repeat(size, axis=1)[:, : values.shape[1]]
        whole = torch.from_numpy(left).to(rows)[places]
        return straight_through(rows, whole)

    return rounded


def _rounded(groups: FloatArray, scales: FloatArray) -> FloatArray:
    return np.clip(np.rint(groups / scales[..., None]), LEAST, MOST)


def large_tables(context: QuantizationContext) -> dict[str, str]:
    """Return the look-ups in tables that get 4 bits: node -> name of the table."""
    graph = onnx.load(context.graph, load_external_data=False).graph
    shapes = {item.name: tuple(item.dims) for item in graph.initializer}
    tables = {lookup: context.inventory.tables[lookup] for lookup in context.tables}
    sizes = {name: math.prod(shapes[name]) for name in tables.values()}
    enough = WORTHWHILE * max(sizes.values(), default=0)
    return {
        lookup: name
        for lookup, name in tables.items()
        if sizes[name] >= enough and shapes[name][-1] % 2 == 0  # rows of whole bytes
    }


def write_in_groups(graph: Path, lookups: Sequence[str], block_size: int) -> None:
    """Give the float tables of some look-ups 4 bits, in the file."""
    model = onnx.load(graph)
    _replace_tables(model, lookups, block_size)
    save_graph(model, graph, MOST_MB)


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
    add_runtime_domain(model)


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
        domain=RUNTIME_DOMAIN,
        bits=4,
        block_size=size,
        gather_axis=0,
        quantize_axis=1,
    )
