"""Schemes `four-bit` and `four-bit-embeddings`: weights and tables of 4 bits in groups, for size.

Shen et al. 2020 (Q-BERT, arXiv 1909.05840) give each group of weights its own range. A group of a
product is `block_size` inputs of one output. Activations are float; inside MatMulNBits, ONNX
Runtime rounds them to 8 bits in groups if the CPU has kernels for that. With `max_drop`, the most
sensitive parts return to 8 bits.

Half of a small encoder's bytes are in its embedding table, of which a text looks up a few rows: 4
bits cost no time there, unlike in products. The paper finds embeddings more sensitive than other
weights, and positions more than tokens. So each `block_size` values of a row have their own scale,
the one with the smallest squared error, and small tables keep 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.progress import quiet_tools
from bertender.models.graphs import add_runtime_domain, save_graph
from bertender.models.onnx_session import MOST_MB, RUNTIME_DOMAIN
from quantize.context import QuantizationContext, Writer, Written
from quantize.graph import FOUR_BIT_LOOKUP, constants_of
from quantize.post_training import fuse, write_integers
from quantize.sensitivity import EIGHT_BITS, write_within_drop

FloatArray = npt.NDArray[np.float32]
COMPUTE_IN_INT8 = 4
"""MatMulNBits's accuracy level: activations in groups of 8 bits, if the CPU has kernels."""
LEAST, MOST = -8, 7
"""Smallest and largest 4-bit integer."""
WORTHWHILE = 0.5
"""Smallest size of a 4-bit table, as a share of the largest table. Every text reads the same rows
of small tables (positions, segments), so their errors add up, and they have few bytes. Positions
are a tenth of a vocabulary cut to 5,000 tokens."""
CLIPPED = np.linspace(LEAST / -MOST, 0.5, 25)
"""Shares of a group's largest value to try as clipping bounds."""


class FourBit(Writer):
    """4-bit weights in products, 8 bits elsewhere."""

    def check(self, model: PreTrainedModel) -> None:
        if model.config.num_hidden_layers == 0:  # it only has products over whole texts
            raise ModelError(
                f"a {model.config.model_type!r} model has no layers, so that its graph has no "
                "product whose weights can have 4 bits. Use --scheme dynamic."
            )

    def write(self, context: QuantizationContext, target: Path) -> Written:
        products = context.inventory.products
        candidates = [each.node for each in products if not each.is_gemm]  # MatMulNBits has no bias
        if not candidates:
            raise ModelError(
                f"{context.source.place} has no product whose weights can have 4 bits: all "
                f"{len(products)} have a bias of their own. Use --scheme dynamic."
            )

        def write(graph: Path, eight_bits: Sequence[str]) -> Written:
            four_bits = [node for node in candidates if node not in eight_bits]
            return write_products(context, graph, four_bits)

        if context.config.max_drop is None:
            return write(target, ())
        return write_within_drop(context, target, write, EIGHT_BITS, candidates)


def write_products(context: QuantizationContext, target: Path, four_bits: Sequence[str]) -> Written:
    """Write a graph with 4 bits for some products, and 8 bits elsewhere."""
    inventory = context.inventory
    others = [each.node for each in inventory.products if each.node not in four_bits]
    nodes = [*others, *inventory.lstms, *context.tables]
    write_integers(context, target, nodes)
    if four_bits:
        with quiet_tools():
            # imported here: it loads packages that other schemes do not need
            from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

            quantizer = MatMulNBitsQuantizer(
                onnx.load(target),
                bits=4,
                block_size=context.config.block_size,
                is_symmetric=True,
                accuracy_level=COMPUTE_IN_INT8,
                nodes_to_include=list(four_bits),
            )
            quantizer.process()
        save_graph(quantizer.model.model, target, MOST_MB)
    quantized = (*four_bits, *others, *inventory.lstms)
    return Written(quantized, context.float_nodes, products_of_4_bits=len(four_bits))


class FourBitEmbeddings(Writer):
    """4-bit large embedding tables, and products as in `dynamic`."""

    def write(self, context: QuantizationContext, target: Path) -> Written:
        inventory, large = context.inventory, large_tables(context)
        products = [each.node for each in inventory.products]
        others = [lookup for lookup in context.tables if lookup not in large]
        nodes = [*products, *inventory.lstms, *others]
        write_integers(context, target, nodes)
        write_in_groups(target, [*large], context.config.block_size)
        return Written(
            (*products, *inventory.lstms),
            context.float_nodes,
            tables_of_4_bits=len({*large.values()}),  # two texts look up in one
            fused_attentions=fuse(context, target),
        )


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


def in_groups(table: FloatArray, size: int) -> tuple[npt.NDArray[np.int8], FloatArray]:
    """Return a table (rows, width) as 4-bit integers, and its scales (rows, groups).

    Each group has the tried scale with the smallest squared error.
    """
    rows, width = table.shape
    padded = np.pad(table, ((0, 0), (0, -width % size))).reshape(rows, -1, size)
    lowest, highest = padded.min(axis=-1), padded.max(axis=-1)
    # the sign of the largest value gets the extra integer
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
    rounded: FloatArray = np.clip(np.rint(groups / scales[..., None]), LEAST, MOST)
    return rounded


def write_in_groups(graph: Path, lookups: Sequence[str], block_size: int) -> None:
    """Quantize the float tables of some look-ups to 4 bits, in the file."""
    model = onnx.load(graph)
    tables = constants_of(model)
    nodes = [node for node in model.graph.node if node.name in lookups]
    names = dict.fromkeys(node.input[0] for node in nodes)
    for name in names:
        integers, scales = in_groups(numpy_helper.to_array(tables[name]), block_size)
        nibbles = (integers - LEAST).astype(np.uint8)
        packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4  # two a byte, the first one low
        model.graph.initializer.append(numpy_helper.from_array(packed, f"{name}_4_bits"))
        model.graph.initializer.append(numpy_helper.from_array(scales, f"{name}_scales"))
    for node in nodes:
        name, rows = node.input
        lookup = helper.make_node(
            FOUR_BIT_LOOKUP,
            [f"{name}_4_bits", rows, f"{name}_scales"],
            [node.output[0]],
            name=node.name,
            domain=RUNTIME_DOMAIN,
            bits=4,
            block_size=block_size,
            gather_axis=0,
            quantize_axis=1,
        )
        node.CopyFrom(lookup)
    read = {name for node in model.graph.node for name in node.input}
    for name in names.keys() - read:
        model.graph.initializer.remove(tables[name])
    add_runtime_domain(model)
    save_graph(model, graph, MOST_MB)
