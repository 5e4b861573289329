"""Other forms of an encoder's graph, for `benchmarks.fusion`: the same model in other operators.

Each takes a graph and returns another that computes the same, but for the rounding that it says.
Whether one is worth keeping is what the benchmark times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from bertender.core.errors import ModelError

__all__ = ["biases_in_gemms", "gelu_tables", "merged_products"]

Array = npt.NDArray[Any]
LEAST_GELU_INPUT = -4.0
"""GELU of less is 0 to about a hundredth of an 8-bit step."""
BISECTIONS = 50


class _Graph:
    """A graph with an index, to which nodes are added in front of others."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.model = model
        self.nodes = model.graph.node
        self.constants = {each.name: each for each in model.graph.initializer}
        self.producers = {name: node for node in self.nodes for name in node.output}
        self.consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in self.nodes:
            for name in node.input:
                self.consumers.setdefault(name, []).append(node)
        self.in_front: dict[str, list[onnx.NodeProto]] = {}
        self.left_out: set[str] = set()

    def value(self, name: str) -> Array:
        return numpy_helper.to_array(self.constants[name])

    def constant(self, name: str, value: Any) -> str:
        self.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def replace(self, old: Sequence[onnx.NodeProto], new: Sequence[onnx.NodeProto]) -> None:
        """Put `new` where the first of `old` stands, and leave `old` out."""
        self.in_front.setdefault(old[0].name, []).extend(new)
        self.left_out |= {node.name for node in old}

    def rewritten(self) -> onnx.ModelProto:
        """Return the graph without what nothing reads any more.

        Raises:
            ModelError: nothing was replaced.
        """
        if not self.in_front:
            raise ModelError(
                "the graph has nothing of this form. Give a BERT's export, or its static graph."
            )
        nodes = [
            each
            for node in self.nodes
            for each in (*self.in_front.get(node.name, ()), node)
            if each.name not in self.left_out
        ]
        wanted = {each.name for each in self.model.graph.output}
        needed = []
        for node in reversed(nodes):
            if wanted & {*node.output}:
                wanted |= {*node.input}
                needed.append(node)
        constants = [each for each in self.model.graph.initializer if each.name in wanted]
        del self.model.graph.node[:], self.model.graph.initializer[:]
        self.model.graph.node.extend(reversed(needed))
        self.model.graph.initializer.extend(constants)
        return self.model

    def bias_of(self, product: onnx.NodeProto) -> tuple[onnx.NodeProto, str] | None:
        """Return the addition after a product and its constant; None where there is none."""
        for node in self.consumers.get(product.output[0], ()):
            names = [name for name in node.input if name in self.constants]
            if node.op_type == "Add" and len(names) == 1:
                return node, names[0]
        return None


def merged_products(model: onnx.ModelProto) -> onnx.ModelProto:
    """Make one product of the query's, the key's and the value's, and split what it gives."""
    graph = _Graph(model)
    for tensor, readers in graph.consumers.items():
        products = [
            node
            for node in readers
            if node.op_type == "MatMul" and node.input[1] in graph.constants
        ]
        biases = [each for node in products if (each := graph.bias_of(node))]
        if len(products) == len(biases) == 3:
            _merge(graph, tensor, products, biases)
    return graph.rewritten()


def _merge(
    graph: _Graph,
    tensor: str,
    products: Sequence[onnx.NodeProto],
    biases: Sequence[tuple[onnx.NodeProto, str]],
) -> None:
    weights = [graph.value(node.input[1]) for node in products]
    name = f"{products[0].name}_merged"
    weight = graph.constant(f"{name}_weight", np.concatenate(weights, axis=1))
    bias = graph.constant(f"{name}_bias", np.concatenate([graph.value(each) for _, each in biases]))
    sizes = graph.constant(f"{name}_sizes", np.array([each.shape[1] for each in weights]))
    additions = [node for node, _ in biases]
    new = [
        helper.make_node("MatMul", [tensor, weight], [f"{name}_product"], name=name),
        helper.make_node("Add", [bias, f"{name}_product"], [f"{name}_sum"], name=f"{name}_add"),
        helper.make_node(
            "Split",
            [f"{name}_sum", sizes],
            [node.output[0] for node in additions],
            axis=-1,
            name=f"{name}_split",
        ),
    ]
    graph.replace([*products, *additions], new)


def biases_in_gemms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn each quantized product and its bias into a Gemm, whose kernel adds the bias itself.

    A Gemm has two dimensions: the rounded activation is reshaped before it, and its output after.
    Biases are rounded to the steps of the sums, as runtimes ask of a Gemm.
    """
    graph = _Graph(model)
    flat: dict[str, tuple[str, str]] = {}
    for product in [node for node in graph.nodes if node.op_type == "MatMul"]:
        sources = [graph.producers.get(name) for name in product.input]
        bias = graph.bias_of(product)
        if bias and all(node and node.op_type == "DequantizeLinear" for node in sources):
            new = [*_flattened(graph, product, flat), *_gemm(graph, product, bias, flat)]
            graph.replace([product, bias[0]], new)
    return graph.rewritten()


def _flattened(
    graph: _Graph, product: onnx.NodeProto, flat: dict[str, tuple[str, str]]
) -> Iterator[onnx.NodeProto]:
    """Yield what gives a product's activation as rows, if no product before has asked for it."""
    tensor, name = product.input[0], product.name
    if tensor in flat:
        return
    integers, *scale = graph.producers[tensor].input
    width = graph.value(graph.producers[product.input[1]].input[0]).shape[0]
    shape = graph.constant(f"{name}_rows_shape", np.array([-1, width]))
    yield helper.make_node("Reshape", [integers, shape], [f"{name}_rows"], name=f"{name}_flatten")
    yield helper.make_node(
        "DequantizeLinear", [f"{name}_rows", *scale], [f"{name}_flat"], name=f"{name}_dequantize"
    )
    yield helper.make_node(
        "Shape", [integers], [f"{name}_lead"], start=0, end=-1, name=f"{name}_shape"
    )
    flat[tensor] = f"{name}_flat", f"{name}_lead"


def _gemm(
    graph: _Graph,
    product: onnx.NodeProto,
    bias: tuple[onnx.NodeProto, str],
    flat: dict[str, tuple[str, str]],
) -> Iterator[onnx.NodeProto]:
    """Yield the Gemm, and what brings its output back to the shape of the addition's."""
    (rows, lead), name = flat[product.input[0]], product.name
    activation, weight = (graph.producers[tensor] for tensor in product.input)
    steps = graph.value(activation.input[1]) * graph.value(weight.input[1]).astype(np.float64)
    rounded = np.rint(graph.value(bias[1]) / steps).astype(np.int32)
    dequantized = [
        graph.constant(f"{name}_bias_integers", rounded),
        graph.constant(f"{name}_bias_scale", steps.astype(np.float32)),
        graph.constant(f"{name}_bias_zero", np.zeros(len(rounded), dtype=np.int32)),
    ]
    width = graph.constant(f"{name}_width", np.array([len(rounded)]))
    yield helper.make_node(
        "DequantizeLinear", dequantized, [f"{name}_bias"], axis=0, name=f"{name}_bias"
    )
    yield helper.make_node(
        "Gemm", [rows, weight.output[0], f"{name}_bias"], [f"{name}_sums"], name=f"{name}_gemm"
    )
    yield helper.make_node("Concat", [lead, width], [f"{name}_whole"], axis=0, name=f"{name}_whole")
    yield helper.make_node(
        "Reshape", [f"{name}_sums", f"{name}_whole"], [bias[0].output[0]], name=f"{name}_unflatten"
    )


def gelu_tables(model: onnx.ModelProto) -> onnx.ModelProto:
    """Look GELU up: its input is rounded to 256 steps, and a table has its output in integers."""
    graph = _Graph(model)
    for node in [node for node in graph.nodes if node.op_type == "Erf"]:
        divided = graph.producers[node.input[0]]
        quantized = _next_quantized(graph, node)
        if quantized is not None:
            graph.replace([quantized], [*_looked_up(graph, divided.input[0], quantized)])
    return graph.rewritten()


def _next_quantized(graph: _Graph, node: onnx.NodeProto) -> onnx.NodeProto | None:
    """Return the QuantizeLinear that reads what comes of a node, element by element."""
    while node.op_type != "QuantizeLinear":
        readers = graph.consumers.get(node.output[0], [])
        if len(readers) != 1:
            return None
        (node,) = readers
    return node


def _looked_up(graph: _Graph, tensor: str, quantized: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """Yield what gives the integers of `quantized` from the input of its GELU."""
    name = f"{quantized.name}_table"
    scale, zero = (graph.value(each) for each in quantized.input[1:])
    kind = np.iinfo(zero.dtype)
    highest = _input_of_gelu(float(scale) * (kind.max - int(zero)))
    step = np.float32((highest - LEAST_GELU_INPUT) / (kind.max - kind.min))
    start = kind.min + round(-LEAST_GELU_INPUT / float(step))
    inputs = (np.arange(kind.min, kind.max + 1) - start) * float(step)
    outputs = np.array([_gelu(each) for each in inputs])
    table = np.clip(np.rint(outputs / float(scale)) + int(zero), kind.min, kind.max)
    constants = [
        graph.constant(f"{name}_step", step),
        graph.constant(f"{name}_start", zero.dtype.type(start)),
    ]
    values = graph.constant(name, np.roll(table, kind.min).astype(zero.dtype))
    yield helper.make_node(
        "QuantizeLinear", [tensor, *constants], [f"{name}_input"], name=f"{name}_round"
    )
    # a negative number of a row counts from the end, where the rolled table has its value
    yield helper.make_node(
        "Cast",
        [f"{name}_input"],
        [f"{name}_rows"],
        to=onnx.TensorProto.INT32,
        name=f"{name}_numbers",
    )
    yield helper.make_node(
        "Gather", [values, f"{name}_rows"], [quantized.output[0]], name=f"{name}_look_up"
    )


def _gelu(value: float) -> float:
    return 0.5 * value * (1 + math.erf(value / math.sqrt(2)))


def _input_of_gelu(output: float) -> float:
    """Return the positive input whose GELU is a positive output."""
    low, high = 0.0, output + 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if _gelu(middle) < output else (low, middle)
    return high
