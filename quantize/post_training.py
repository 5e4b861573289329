"""Schemes `dynamic` and `static`: 8-bit weights, activations scaled in each batch or before."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from bertender.core.progress import quiet_tools
from bertender.models.graphs import copy_graph, save_graph
from bertender.models.onnx_session import MOST_MB
from quantize.attention import fuse_attention
from quantize.context import QuantizationContext, Written, histograms
from quantize.graph import Product
from quantize.integers import CALIBRATORS, INTEGERS, Affine, Range, affine

# --- from quantize.dynamic
# Dynamic quantization: int8 weights, activation scales computed from each batch as it runs.
#
# Weights of matrix products are symmetric int8 with a scale for each output channel; those of an
# LSTM likewise, for each unit of each gate. Embedding tables, where most of a small encoder's
# bytes
# are, become uint8 with one scale and zero point each; only the rows that a batch looks up are
# turned back into floats. That includes the small tables (positions, segments): on a 6 x 384
# encoder
# and SST-2 sentences, leaving these in float32 changed the mean distance from the float model
# from
# 0.0248 to 0.0249 of the largest logit, and made the file 3 % larger.

FULL_RANGE = INTEGERS["int8-symmetric"]


def write_dynamic(
    context: QuantizationContext, target: Path, float_nodes: Sequence[str] = ()
) -> Written:
    """Quantize the float graph into `target`, except some nodes."""
    inventory = context.inventory
    products = [each.node for each in inventory.products if each.node not in float_nodes]
    tables = [node for node in context.tables if node not in float_nodes]
    nodes = [*products, *inventory.lstms, *tables]
    quantize_nodes(context.graph, target, nodes, context.target.weights)
    quantized = (*products, *inventory.lstms)
    return Written(quantized, context.reasons, fused_attentions=fuse_if_set(context, target))


def fuse_if_set(context: QuantizationContext, graph: Path) -> int | None:
    """Make one operator of each attention where it is set; return how many, None where not."""
    return fuse_attention(context.graph, graph) if context.config.fused_attention else None


def quantize_rest(
    context: QuantizationContext, source: Path, target: Path, float_nodes: Sequence[str] = ()
) -> None:
    """Quantize what has no static form: look-ups in tables, and LSTMs."""
    tables = [node for node in context.tables if node not in float_nodes]
    quantize_nodes(source, target, [*context.inventory.lstms, *tables], context.target.weights)


def quantize_nodes(source: Path, target: Path, nodes: Sequence[str], weights: str) -> None:
    """Quantize some nodes of the graph `source` into `target`.

    Args:
        source: a graph.
        target: where to write.
        nodes: names of products, look-ups in tables and LSTMs; none copies the graph.
        weights: a symmetric row of INTEGERS.
    """
    if not nodes:
        save_graph(onnx.load(source), target, MOST_MB)
        return
    with quiet_tools(), TemporaryDirectory(dir=target.parent) as folder:
        quantize_dynamic(
            # it writes next to its input, where another run may quantize the same artifact, or
            # nobody may write
            copy_graph(source, Path(folder)),
            target,
            op_types_to_quantize=["MatMul", "Gemm", "Gather", "LSTM"],
            # it makes a Gemm a product of this name, and an addition
            nodes_to_quantize=[name for node in nodes for name in (node, f"{node}_MatMul")],
            per_channel=True,
            weight_type=QuantType.QInt8,
            reduce_range=INTEGERS[weights].highest < FULL_RANGE.highest,
        )


# --- from quantize.qdq
# Writing a graph's products with 8-bit weights and activations, as QuantizeLinear pairs (QDQ).
#
#     x -> QuantizeLinear -> DequantizeLinear -                          W -> DequantizeLinear ->
#     MatMul -> + bias
#
# ONNX Runtime, and other runtimes that read QDQ, turn each such product into one of integers.
# Only
# the products read the rounded activations: residual connections stay in float.

WeightScales = npt.NDArray[np.float64]
"""(outputs,), what one step of each output's weights is worth."""


@dataclass(frozen=True)
class QdqIntegers:
    """Integers of quantized products."""

    activations: str
    """A row of INTEGERS."""
    weights: str
    """A symmetric row of INTEGERS; each output has a scale of its own."""
    scales: Mapping[str, WeightScales] = field(default_factory=dict)
    """Of weights that are rounded already, by their products' nodes; in the others the largest
    weight of an output is the largest integer."""


def write_qdq(
    source: Path,
    target: Path,
    products: Iterable[Product],
    ranges: Mapping[str, Range],
    integers: QdqIntegers,
) -> None:
    """Write a graph whose products are quantized.

    Args:
        source: the float graph.
        target: where to write.
        products: what to quantize of it; all else stays as it is.
        ranges: of the products' activations, by the tensor's name.
        integers: of the products.
    """
    model = onnx.load(source)
    editor = _Editor(model.graph, integers.scales)
    for product in products:
        scale = affine(*ranges[product.activation], INTEGERS[integers.activations])
        editor.quantize(product, scale, INTEGERS[integers.weights].highest)
    editor.finish()
    save_graph(model, target, MOST_MB)  # its tables are still of floats


def name_of_integers(product: Product) -> str:
    """Return the name of the constant that has a product's weight in integers."""
    return f"{product.weight}_quantized"


def weight_scales(weight: npt.NDArray[np.floating[Any]], highest: int) -> WeightScales:
    """Return the scale of each output of a weight (inputs, outputs), whose largest is `highest`."""
    largest = np.abs(weight.astype(np.float64)).max(axis=0)
    return np.where(largest > 0, largest, highest) / highest


class _Editor:
    """A graph, while products become quantized ones."""

    def __init__(self, graph: onnx.GraphProto, scales: Mapping[str, WeightScales]) -> None:
        self.graph = graph
        self.scales = scales
        self.nodes = {node.name: node for node in graph.node}
        self.weights = {item.name: item for item in graph.initializer}
        self.rounded: dict[str, str] = {}
        """Activation -> the tensor that holds what quantizing leaves of it."""
        self.before: dict[str, list[onnx.NodeProto]] = {}
        """First product that reads an activation -> the pair that goes before it."""

    def quantize(self, product: Product, scale: Affine, highest: int) -> None:
        if product.activation not in self.rounded:
            self.before[product.node] = self._pair(product.activation, scale)
        node = self.nodes[product.node]
        node.input[0] = self.rounded[product.activation]
        node.input[1] = self._weight(product, highest)
        if node.op_type == "Gemm":
            node.input[2] = self._bias(product, node.input[2], scale, highest)

    def _pair(self, tensor: str, scale: Affine) -> list[onnx.NodeProto]:
        kind = np.uint8 if scale.integers.lowest == 0 else np.int8
        step = self._constant(f"{tensor}_scale", np.float32(scale.scale))
        zero = self._constant(f"{tensor}_zero_point", kind(scale.zero_point))
        self.rounded[tensor] = f"{tensor}_rounded"
        return [
            helper.make_node(operator, [*inputs, step, zero], [f"{tensor}_{result}"], name=name)
            for operator, inputs, result, name in (
                ("QuantizeLinear", [tensor], "quantized", f"{tensor}_quantize"),
                ("DequantizeLinear", [f"{tensor}_quantized"], "rounded", f"{tensor}_dequantize"),
            )
        ]

    def _weight(self, product: Product, highest: int) -> str:
        name = product.weight
        if name in self.rounded:
            return self.rounded[name]  # two products share it
        scales, columns = self._scales(product, highest)
        integers = np.clip(np.rint(columns / scales), -highest, highest).astype(np.int8)
        stored = integers.T if product.transposed else integers
        axis = 0 if product.transposed else 1
        self.rounded[name] = self._dequantized(product, name, stored, scales, axis)
        return self.rounded[name]

    def _bias(self, product: Product, name: str, scale: Affine, highest: int) -> str:
        """Quantize a bias as the sums that it is added to: runtimes need that of a Gemm."""
        scales = self._scales(product, highest)[0] * scale.scale
        integers = np.rint(numpy_helper.to_array(self.weights[name]) / scales)
        limits = np.iinfo(np.int32)
        stored = np.clip(integers, limits.min, limits.max).astype(np.int32)
        return self._dequantized(product, name, stored, scales, axis=0)

    def _scales(
        self, product: Product, highest: int
    ) -> tuple[WeightScales, npt.NDArray[np.floating[Any]]]:
        """Return the scale of each output, and the weight as (inputs, outputs)."""
        stored = numpy_helper.to_array(self.weights[product.weight])
        columns = stored.T if product.transposed else stored
        return self.scales.get(product.node, weight_scales(columns, highest)), columns

    def _dequantized(
        self,
        product: Product,
        name: str,
        integers: npt.NDArray[np.signedinteger[Any]],
        scales: WeightScales,
        axis: int,
    ) -> str:
        """Add a constant in integers, and the node that turns it back before a product."""
        values = [
            self._constant(f"{name}_quantized", integers),
            self._constant(f"{name}_scale", scales.astype(np.float32)),
            self._constant(f"{name}_zero_point", np.zeros(len(scales), dtype=integers.dtype)),
        ]
        node = helper.make_node(
            "DequantizeLinear", values, [f"{name}_rounded"], name=f"{name}_dequantize", axis=axis
        )
        self.before.setdefault(product.node, []).append(node)
        return f"{name}_rounded"

    def _constant(self, name: str, value: npt.ArrayLike) -> str:
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def finish(self) -> None:
        """Put the new nodes in order, and drop the float weights that nothing reads any more."""
        nodes = [
            each for node in self.graph.node for each in (*self.before.get(node.name, ()), node)
        ]
        del self.graph.node[:]
        self.graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input}
        remaining = [item for item in self.graph.initializer if item.name in read]
        del self.graph.initializer[:]
        self.graph.initializer.extend(remaining)


# --- from quantize.static
# Static quantization: scales of activations are found once, on real text, before the model runs.
#
# Nothing is computed of an activation but its rounding, and a text's logits do not depend on what
# it is batched with. What is beyond the range of the calibration texts saturates.


def write_static(
    context: QuantizationContext, target: Path, float_nodes: Sequence[str] = ()
) -> Written:
    """Quantize the float graph into `target`, except some nodes."""
    return write_with_ranges(context, target, calibrated_ranges(context), float_nodes)


def write_with_ranges(
    context: QuantizationContext,
    target: Path,
    ranges: Mapping[str, Range],
    float_nodes: Sequence[str] = (),
    scales: Mapping[str, WeightScales] | None = None,
) -> Written:
    """Quantize the float graph into `target` with ranges that are known, except some nodes.

    `scales` has those of weights that are rounded already, by their products' nodes.
    """
    products = [each for each in context.inventory.products if each.node not in float_nodes]
    with TemporaryDirectory(dir=context.folder) as folder:
        between = Path(folder) / "products.onnx"
        kinds = context.target.activations, context.target.weights
        write_qdq(context.graph, between, products, ranges, QdqIntegers(*kinds, scales or {}))
        quantize_rest(context, between, target, float_nodes)
    quantized = (*(each.node for each in products), *context.inventory.lstms)
    return Written(quantized, context.reasons, {name: ranges[name] for name in sorted(ranges)})


def calibrated_ranges(context: QuantizationContext) -> dict[str, Range]:
    """Return the range of each product's activation, by the tensor's name."""
    config = context.config
    tensors = sorted({product.activation for product in context.inventory.products})
    batches = context.texts(config.calibration_texts, "calibrate")
    clip = CALIBRATORS[config.calibrator].clip
    seen = histograms(context.graph, tensors, batches)
    integers = INTEGERS[context.target.activations]
    return {name: clip(seen[name], config.percentile, integers) for name in tensors}
