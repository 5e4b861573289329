"""4-bit weights and embedding tables in groups, for size."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import torch
from onnx import helper, numpy_helper
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.progress import quiet_tools
from bertender.models.graphs import RUNTIME_DOMAIN, add_runtime_domain, save_graph
from bertender.models.onnx_session import MOST_MB
from quantize.context import QuantizationContext, Written
from quantize.graph import FOUR_BIT_LOOKUP
from quantize.mixed import EIGHT_BITS, returned
from quantize.post_training import fuse_if_set, quantize_nodes
from quantize.qat import RowRounding, straight_through

# --- from quantize.four_bit
# 4-bit weights in groups, for size: products with weights of 4 bits, all else of 8.
#
# Shen et al. 2020 (Q-BERT, arXiv 1909.05840) give groups of weights a range each; here a group is
# `block_size` inputs of one output. Activations come and go in float; while it multiplies, ONNX
# Runtime's MatMulNBits rounds them to 8 bits in groups of their own where the CPU has kernels for
# that. With `max_drop`, the parts that suffer most go back to 8 bits.

COMPUTE_IN_INT8 = 4
"""MatMulNBits's accuracy level: activations in groups of 8 bits, where the CPU has kernels."""


def write_four_bit(context: QuantizationContext, target: Path) -> Written:
    """Quantize the float graph into `target`."""
    candidates = _candidates(context)
    if not candidates:
        raise ModelError(
            f"{context.source.path} has no product whose weights can have 4 bits: 0 of "
            f"{len(context.inventory.products)} are without a bias of their own. "
            "Use --scheme dynamic."
        )
    if context.config.max_drop is None:
        return _write(context, target, ())
    return returned(context, target, _write, EIGHT_BITS, candidates)


def check_layers(model: PreTrainedModel) -> None:
    """Raise ModelError for a model without layers: it has a product for a whole text alone."""
    if model.config.num_hidden_layers == 0:
        raise ModelError(
            f"a {model.config.model_type!r} model has no layers, so that its graph has no product "
            "whose weights can have 4 bits. Use --scheme dynamic."
        )


def _candidates(context: QuantizationContext) -> list[str]:
    """Return the products that can have 4 bits: a Gemm has no such form."""
    return [each.node for each in context.inventory.products if not each.is_gemm]


def _write(context: QuantizationContext, target: Path, left: Sequence[str]) -> Written:
    """Write 4 bits for the candidates except some, which have 8 as all else has."""
    inventory = context.inventory
    small = [node for node in _candidates(context) if node not in left]
    others = [each.node for each in inventory.products if each.node not in small]
    nodes = [*others, *inventory.lstms, *context.tables]
    quantize_nodes(context.graph, target, nodes, context.target.weights)
    _write_small(target, small, context.config.block_size)
    quantized = (*small, *others, *inventory.lstms)
    return Written(quantized, context.reasons, products_of_4_bits=len(small))


def _write_small(graph: Path, nodes: Sequence[str], block_size: int) -> None:
    """Give the weights of some products 4 bits, in the file."""
    if not nodes:
        return
    with quiet_tools():
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        quantizer = MatMulNBitsQuantizer(
            onnx.load(graph),
            bits=4,
            block_size=block_size,
            is_symmetric=True,
            accuracy_level=COMPUTE_IN_INT8,
            nodes_to_include=list(nodes),
        )
        quantizer.process()
    save_graph(quantizer.model.model, graph, MOST_MB)


# --- from quantize.four_bit_tables
# Embedding tables of 4 bits in groups, in a graph and in a model that is trained.
#
# Shen et al. 2020 (Q-BERT, arXiv 1909.05840) find embeddings more sensitive than other weights,
# and
# positions more than tokens: so some values of a row (`block_size`) have a scale of their own,
# the
# one with the least squared error, and small tables have 8 bits.

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


# --- from quantize.four_bit_embeddings
# Embedding tables of 4 bits in groups, all else as `dynamic`: for size, at no cost in time.
#
# Half of a small encoder's bytes are its table of tokens, of which a text looks up a few rows. So
# fewer bits cost no time there, while products of 4 bits do.


def write_four_bit_embeddings(context: QuantizationContext, target: Path) -> Written:
    """Quantize the float graph into `target`: tables to 4 bits, products as `dynamic` does."""
    inventory, large = context.inventory, large_tables(context)
    products = [each.node for each in inventory.products]
    others = [lookup for lookup in context.tables if lookup not in large]
    nodes = [*products, *inventory.lstms, *others]
    quantize_nodes(context.graph, target, nodes, context.target.weights)
    write_in_groups(target, [*large], context.config.block_size)
    return Written(
        (*products, *inventory.lstms),
        context.reasons,
        tables_of_4_bits=len({*large.values()}),  # two texts look up in one
        fused_attentions=fuse_if_set(context, target),
    )
