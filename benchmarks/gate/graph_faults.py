"""Faults besides the products of a BERT's graph: what a broken export or a wrong fusion would do.

Each row changes a float graph in memory. They are planted by the benchmark of the gate, and by the
tests of the checks that must find them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import helper, numpy_helper

from benchmarks.gate.product_faults import change

__all__ = ["GRAPH_FAULTS", "PlantGraph"]

PlantGraph = Callable[[onnx.ModelProto], None]


def _insert(model: onnx.ModelProto, before: onnx.NodeProto, made: list[onnx.NodeProto]) -> None:
    """Put nodes in front of another, which is changed already: it is copied here."""
    nodes = [*model.graph.node]
    place = nodes.index(before)
    del model.graph.node[:]
    model.graph.node.extend([*nodes[:place], *made, *nodes[place:]])


def _read_instead(model: onnx.ModelProto, old: str, new: str) -> None:
    for node in model.graph.node:
        node.input[:] = [new if name == old else name for name in node.input]


def _constant(model: onnx.ModelProto, name: str, value: float, kind: type = np.float32) -> str:
    model.graph.initializer.append(numpy_helper.from_array(np.array(value, dtype=kind), name))
    return name


def ignore_mask(model: onnx.ModelProto) -> None:
    """Attend to padding as to text."""
    _read_instead(model, "attention_mask", "fault/ones")
    made = [
        helper.make_node("Equal", ["attention_mask", "attention_mask"], ["fault/true"]),
        helper.make_node("Cast", ["fault/true"], ["fault/ones"], to=onnx.TensorProto.INT64),
    ]
    _insert(model, model.graph.node[0], made)


def drop_token_types(model: onnx.ModelProto) -> None:
    """Read both texts of a pair as the first."""
    _read_instead(model, "token_type_ids", "fault/zeros")
    made = [helper.make_node("Sub", ["token_type_ids", "token_type_ids"], ["fault/zeros"])]
    _insert(model, model.graph.node[0], made)


def shift_positions(model: onnx.ModelProto) -> None:
    """Give each token the position of the one behind it."""
    lookup = next(
        node
        for node in model.graph.node
        if node.op_type == "Gather" and "position" in node.input[0]
    )
    one = _constant(model, "fault/one", 1, np.int64)
    made = [helper.make_node("Add", [lookup.input[1], one], ["fault/shifted"])]
    lookup.input[1] = "fault/shifted"
    _insert(model, lookup, made)


def _first(model: onnx.ModelProto, operator: str) -> onnx.NodeProto | None:
    return next((node for node in model.graph.node if node.op_type == operator), None)


def approximate_gelu(model: onnx.ModelProto) -> None:
    """Compute GELU by the formula with tanh."""
    while (node := _first(model, "Erf")) is not None:
        stem = f"fault/{node.output[0]}"
        root = _constant(model, f"{stem}/root", math.sqrt(2))
        cubed = _constant(model, f"{stem}/cubic", 0.044715)
        slope = _constant(model, f"{stem}/slope", math.sqrt(2 / math.pi))
        made = [
            helper.make_node("Mul", [node.input[0], root], [f"{stem}/x"]),
            helper.make_node("Mul", [f"{stem}/x", f"{stem}/x"], [f"{stem}/x2"]),
            helper.make_node("Mul", [f"{stem}/x2", f"{stem}/x"], [f"{stem}/x3"]),
            helper.make_node("Mul", [f"{stem}/x3", cubed], [f"{stem}/bent"]),
            helper.make_node("Add", [f"{stem}/x", f"{stem}/bent"], [f"{stem}/sum"]),
            helper.make_node("Mul", [f"{stem}/sum", slope], [f"{stem}/inner"]),
        ]
        node.op_type = "Tanh"
        node.input[0] = f"{stem}/inner"
        _insert(model, node, made)


def attend_by_queries(model: onnx.ModelProto) -> None:
    """Multiply queries by queries, of the first layer, and leave the keys unread."""
    constants = {item.name for item in model.graph.initializer}
    scores = next(
        node
        for node in model.graph.node
        if node.op_type == "MatMul" and not constants & set(node.input)
    )
    turned = "fault/queries"
    made = [helper.make_node("Transpose", [scores.input[0]], [turned], perm=[0, 1, 3, 2])]
    scores.input[1] = turned
    _insert(model, scores, made)


def raise_bias(model: onnx.ModelProto) -> None:
    """Add 0.1 to each number of a feed-forward bias in the middle, for all texts alike.

    Feed-forward biases are the longest. One of keys would be no fault: it adds the same to all
    scores of a query.
    """
    sizes = {item.name: item.dims[0] for item in model.graph.initializer if len(item.dims) == 1}
    biases = [
        name
        for node in model.graph.node
        if node.op_type in ("Add", "Gemm")
        for name in node.input
        if name in sizes
    ]
    longest = [name for name in biases if sizes[name] == max(map(sizes.__getitem__, biases))]
    constants = {item.name: item for item in model.graph.initializer}
    change(constants, longest[len(longest) // 2], lambda bias: bias + 0.1)


GRAPH_FAULTS: Mapping[str, PlantGraph] = {
    "mask ignored": ignore_mask,
    "token types dropped": drop_token_types,
    "positions off by one": shift_positions,
    "GELU by tanh": approximate_gelu,
    "scores without keys": attend_by_queries,
    "bias of a layer raised": raise_bias,
}
