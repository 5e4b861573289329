"""Schemes `dynamic` and `static`: 8-bit weights, activation scales per batch or fixed.

Weights of matrix products are symmetric int8 with a scale for each output channel; those of an LSTM
too, for each unit of each gate. Embedding tables, with most of a small encoder's bytes, become
uint8 with one scale and zero point each; only the rows that a batch looks up are converted back to
floats. This includes small tables (positions, segments): keeping them in float32 did not bring the
logits of a 6 x 384 encoder nearer (SST-2), and made the file 3 % larger.

Static scales are found once, on real text: an activation is only rounded, and a text's logits do
not depend on its batch. Values beyond the range of the calibration texts saturate. Static products
are written as QuantizeLinear pairs (QDQ), which runtimes turn into integer products:

    x -> QuantizeLinear -> DequantizeLinear -\
                          W -> DequantizeLinear -> MatMul -> + bias

Only the products read the rounded activations: residual connections stay in float.
"""

from __future__ import annotations

import re
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
from bertender.models.classifier import onnx_file
from bertender.models.graphs import copy_graph, save_graph
from bertender.models.onnx_session import MOST_MB
from quantize.attention import fuse_attention, fuse_products
from quantize.context import QuantizationContext, Writer, Written, histograms
from quantize.graph import Product, constants_of, replace_nodes
from quantize.integers import (
    CALIBRATORS,
    INTEGERS,
    Affine,
    Integers8,
    Range,
    WeightScales,
    affine,
    nearest,
    weight_scales,
)

FULL_RANGE = INTEGERS["int8-symmetric"]


class Dynamic(Writer):
    """Activation scales computed for each batch at run time."""

    def write(self, context: QuantizationContext, target: Path) -> Written:
        return write_dynamic(context, target)


class Static(Writer):
    """Activation scales found once, on training texts, before the model runs."""

    def write(self, context: QuantizationContext, target: Path) -> Written:
        return write_with_ranges(context, target, calibrated_ranges(context))


def write_dynamic(
    context: QuantizationContext, target: Path, float_nodes: Sequence[str] = ()
) -> Written:
    """Quantize the float graph into `target`, without some nodes."""
    inventory = context.inventory
    products = [each.node for each in inventory.products if each.node not in float_nodes]
    tables = [node for node in context.tables if node not in float_nodes]
    nodes = [*products, *inventory.lstms, *tables]
    write_integers(context, target, nodes)
    quantized = (*products, *inventory.lstms)
    fused = fuse(context, target)
    return Written(quantized, context.float_nodes, fused_attentions=fused)


def fuse(context: QuantizationContext, graph: Path) -> int | None:
    """Fuse parts of a dynamic graph, according to settings and target.

    Returns:
        The number of fused attentions; None if `fused_attention` is off.
    """
    attentions = None
    if context.config.fused_attention:
        # attention is found if no node stands between a norm and its products
        attentions = fuse_attention(onnx_file(context.source), graph)
    if context.target.fused_products:
        fuse_products(graph)
    return attentions


def write_integers(context: QuantizationContext, target: Path, nodes: Sequence[str]) -> None:
    """Quantize some nodes of the float graph into `target`, with the context's integers."""
    quantize_nodes(context.graph, target, nodes, context.target.weights)
    quantized = {each.weight: each for each in context.inventory.products if each.node in nodes}
    own = {
        name: integers for name, integers in context.integer_weights.items() if name in quantized
    }
    if not own:
        return
    floats, model = constants_of(onnx.load(context.graph)), onnx.load(target)
    constants, highest = constants_of(model), INTEGERS[context.target.weights].highest
    for name, integers in own.items():
        scales = weight_scales(quantized[name].matrix(floats[name]), highest)
        values = numpy_helper.from_array(integers, f"{name}_quantized")
        steps = numpy_helper.from_array(scales.astype(np.float32), f"{name}_scale")
        for constant in (values, steps):
            constants[constant.name].CopyFrom(constant)
    save_graph(model, target, MOST_MB)


def quantize_nodes(source: Path, target: Path, nodes: Sequence[str], weights: str) -> None:
    """Quantize some nodes of the graph `source` into `target`.

    Args:
        source: graph to quantize.
        target: path of the quantized graph.
        nodes: names of products, table look-ups and LSTMs; without any, the graph is copied.
        weights: a symmetric row of INTEGERS.
    """
    if not nodes:
        save_graph(onnx.load(source), target, MOST_MB)
        return
    with quiet_tools(), TemporaryDirectory(dir=target.parent) as folder:
        quantize_dynamic(
            # it writes next to its input, which another run may be quantizing too, or which is
            # read-only
            copy_graph(source, Path(folder)),
            target,
            op_types_to_quantize=["MatMul", "Gemm", "Gather", "LSTM"],
            # it splits a Gemm into a product of this name and an addition
            nodes_to_quantize=[name for node in nodes for name in (node, f"{node}_MatMul")],
            per_channel=True,
            weight_type=QuantType.QInt8,
            reduce_range=INTEGERS[weights].highest < FULL_RANGE.highest,
            # shape inference does not know ONNX Runtime's operators
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    _name_as_before(target)


TRANSPOSED = re.compile(r"_Transposed(_\d+)?(?=(_quantized|_scale|_zero_point)?$)")
"""Suffix in ONNX Runtime 1.32 for a Gemm's weight that becomes a MatMul's."""


def _name_as_before(path: Path) -> None:
    """Give weights their names in the float graph, by which they are found in all quantized
    graphs."""
    model = onnx.load(path)
    taken = constants_of(model)
    names = {name: TRANSPOSED.sub("", name) for name in taken if TRANSPOSED.search(name)}
    names = {own: name for own, name in names.items() if name not in taken}
    if not names:
        return
    for constant in model.graph.initializer:
        constant.name = names.get(constant.name, constant.name)
    for node in model.graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
    save_graph(model, path, MOST_MB)


def calibrated_ranges(context: QuantizationContext) -> dict[str, Range]:
    """Return the range of each product's activation, by tensor name."""
    config = context.config
    tensors = sorted({product.activation for product in context.inventory.products})
    seen = histograms(context.graph, tensors, context.texts(config.calibration_texts, "calibrate"))
    calibrator, integers = CALIBRATORS[config.calibrator], INTEGERS[context.target.activations]
    return {name: calibrator.clip(seen[name], config.percentile, integers) for name in tensors}


def write_with_ranges(
    context: QuantizationContext,
    target: Path,
    ranges: Mapping[str, Range],
    float_nodes: Sequence[str] = (),
    scales: Mapping[str, WeightScales] | None = None,
) -> Written:
    """Quantize the float graph into `target` with known ranges, without some nodes.

    `scales` are those of weights that are already rounded, by their products' nodes.
    """
    inventory, weights = context.inventory, context.target.weights
    products = [each for each in inventory.products if each.node not in float_nodes]
    with TemporaryDirectory(dir=context.folder) as folder:
        between = Path(folder) / "products.onnx"
        own = context.integer_weights if scales is None else {}
        integers = QdqIntegers(context.target.activations, weights, scales or {}, own)
        write_qdq(context.graph, between, products, ranges, integers)
        # table look-ups and LSTMs have no static form
        tables = [node for node in context.tables if node not in float_nodes]
        quantize_nodes(between, target, [*inventory.lstms, *tables], weights)
    quantized = (*(each.node for each in products), *inventory.lstms)
    return Written(quantized, context.float_nodes, {name: ranges[name] for name in sorted(ranges)})


@dataclass(frozen=True)
class QdqIntegers:
    """Integers of quantized products."""

    activations: str
    """A row of INTEGERS."""
    weights: str
    """A symmetric row of INTEGERS; each output has its own scale."""
    scales: Mapping[str, WeightScales] = field(default_factory=dict)
    """Scales of weights that are already rounded, by their products' nodes; in other products the
    largest weight of an output becomes the largest integer."""
    integers: Mapping[str, Integers8] = field(default_factory=dict)
    """Integers of weights by name, (inputs, outputs); other weights are rounded to the nearest."""


def write_qdq(
    source: Path,
    target: Path,
    products: Iterable[Product],
    ranges: Mapping[str, Range],
    integers: QdqIntegers,
) -> None:
    """Write a graph with quantized products.

    Args:
        source: the float graph.
        target: path of the quantized graph.
        products: products to quantize.
        ranges: ranges of the products' activations, by tensor name.
        integers: integers of the products.
    """
    model = onnx.load(source)
    editor = _Editor(model, integers)
    for product in products:
        scale = affine(*ranges[product.activation], INTEGERS[integers.activations])
        editor.quantize(product, scale, INTEGERS[integers.weights].highest)
    editor.finish()
    save_graph(model, target, MOST_MB)  # its tables are still float


def name_of_integers(product: Product) -> str:
    """Return the name of the constant with a product's integer weight."""
    return f"{product.weight}_quantized"


class _Editor:
    """A graph whose products are being quantized."""

    def __init__(self, model: onnx.ModelProto, known: QdqIntegers) -> None:
        self.model = model
        self.known = known
        self.nodes = {node.name: node for node in model.graph.node}
        self.weights = constants_of(model)
        self.rounded: dict[str, str] = {}
        """Activation or weight -> tensor of its dequantized values."""
        self.before: dict[str, list[onnx.NodeProto]] = {}
        """Product -> nodes to insert before it."""

    def quantize(self, product: Product, scale: Affine, highest: int) -> None:
        """Let a product read its activation and weight quantized and dequantized."""
        if product.activation not in self.rounded:
            self.before[product.node] = self._round(product.activation, scale)
        columns = product.matrix(self.weights[product.weight])
        scales = self.known.scales.get(product.node, weight_scales(columns, highest))
        if product.weight not in self.rounded:  # two products may share it
            integers = self.known.integers.get(product.weight)
            if integers is None:
                integers = nearest(columns / scales, highest)
            self._store(product, product.weight, integers, scales, axis=1)
        node = self.nodes[product.node]
        for attribute in node.attribute:
            # ONNX Runtime before 1.31 crashes when opening a graph that transposes a weight with a
            # scale for each output
            if attribute.name == "transB":
                attribute.i = 0
        node.input[0] = self.rounded[product.activation]
        node.input[1] = self.rounded[product.weight]
        if product.is_gemm:  # runtimes need its bias in steps of the integer sums
            bias, limits = node.input[2], np.iinfo(np.int32)
            sums = np.rint(numpy_helper.to_array(self.weights[bias]) / (scales * scale.scale))
            clipped = np.clip(sums, limits.min, limits.max).astype(np.int32)
            node.input[2] = self._store(product, bias, clipped, scales * scale.scale, axis=0)

    def _round(self, tensor: str, scale: Affine) -> list[onnx.NodeProto]:
        """Return the pair of nodes that rounds an activation."""
        kind = np.uint8 if scale.integers.lowest == 0 else np.int8
        step = self._constant(f"{tensor}_scale", np.float32(scale.scale))
        zero = self._constant(f"{tensor}_zero_point", kind(scale.zero_point))
        quantized = f"{tensor}_quantized"
        self.rounded[tensor] = f"{tensor}_rounded"
        return [
            helper.make_node(
                "QuantizeLinear", [tensor, step, zero], [quantized], name=f"{tensor}_quantize"
            ),
            helper.make_node(
                "DequantizeLinear",
                [quantized, step, zero],
                [self.rounded[tensor]],
                name=f"{tensor}_dequantize",
            ),
        ]

    def _store(
        self,
        product: Product,
        name: str,
        integers: npt.NDArray[np.signedinteger[Any]],
        scales: WeightScales,
        axis: int,
    ) -> str:
        """Add an integer constant, and the node that dequantizes it before a product."""
        values = [
            self._constant(f"{name}_quantized", integers),
            self._constant(f"{name}_scale", scales.astype(np.float32)),
            self._constant(f"{name}_zero_point", np.zeros(len(scales), dtype=integers.dtype)),
        ]
        self.rounded[name] = f"{name}_rounded"
        node = helper.make_node(
            "DequantizeLinear", values, [self.rounded[name]], name=f"{name}_dequantize", axis=axis
        )
        self.before.setdefault(product.node, []).append(node)
        return self.rounded[name]

    def _constant(self, name: str, value: npt.ArrayLike) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def finish(self) -> None:
        """Put the new nodes in order, and drop unused float weights."""
        graph = self.model.graph
        nodes = [each for node in graph.node for each in (*self.before.get(node.name, ()), node)]
        replace_nodes(self.model, nodes)
        read = {name for node in nodes for name in node.input}
        remaining = [item for item in graph.initializer if item.name in read]
        del graph.initializer[:]
        graph.initializer.extend(remaining)
