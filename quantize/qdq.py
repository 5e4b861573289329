"""Writing a graph's products with 8-bit weights and activations, as QuantizeLinear pairs (QDQ).

    x -> QuantizeLinear -> DequantizeLinear -\
                          W -> DequantizeLinear -> MatMul -> + bias

ONNX Runtime, and other runtimes that read QDQ, turn each such product into one of integers. Only
the products read the rounded activations: residual connections stay in float.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from bertender.models.graph_file import MOST_MB, save_graph
from quantize.affine import INTEGERS, Affine, affine
from quantize.calibrators import Range
from quantize.graph import Product

__all__ = ["QdqIntegers", "WeightScales", "name_of_integers", "weight_scales", "write_qdq"]

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
