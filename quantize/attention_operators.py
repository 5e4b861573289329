"""Attentions of a dynamically quantized graph: where they are, and the operator for each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

from bertender.models.graph_optimizer import RUNTIME_DOMAIN
from quantize.cuts import nodes_between
from quantize.graph import FUSED_ATTENTION, PRODUCTS_OF_ATTENTION

__all__ = [
    "MASK",
    "FusedAttention",
    "constants_of",
    "find_attentions",
    "products_of",
]

Array = npt.NDArray[Any]
MASK = "attention_mask"
"""The graph's input."""
SHARED_ATTRIBUTES = frozenset({"num_heads", "mask_filter_value", "scale", "unidirectional"})
"""Attributes that Attention and QAttention share; with others it would compute something else."""
SHARED_INPUTS = 4
"""Inputs that they share: the activation, the weight, the bias, the mask."""


@dataclass(frozen=True)
class FusedAttention:
    """Replacement of one attention of a quantized graph."""

    node: onnx.NodeProto
    """QAttention."""
    masks: Sequence[onnx.NodeProto]
    """They give the mask in the form that it reads."""
    constants: Sequence[onnx.TensorProto]


@dataclass(frozen=True)
class _Integers:
    """A quantized product."""

    rounding: onnx.NodeProto
    """DynamicQuantizeLinear of its activation."""
    name: str
    """Of the weight."""
    weight: Array
    """(inputs, outputs)"""
    scale: Array
    """(outputs,)"""
    zero_point: Array
    """(outputs,)"""


def find_attentions(
    optimized: onnx.ModelProto, floats: onnx.ModelProto, quantized: onnx.ModelProto
) -> Iterator[FusedAttention]:
    """Yield what can stand for the attentions of a quantized graph.

    Args:
        optimized: the float graph with fused attention, as ONNX Runtime's optimizer makes it.
        floats: the float graph.
        quantized: made of it; an attention with a product that is float is left out.
    """
    merged, products = constants_of(optimized), products_of(floats)
    for node in optimized.graph.node:
        if node.op_type == "Attention" and _has_an_8_bit_form(node):
            activation, weight, bias, mask = node.input[:SHARED_INPUTS]
            outputs = _in_order(merged[weight], products.get(activation, {}))
            integers = _all_integers(quantized, activation, outputs)
            if len(integers) == PRODUCTS_OF_ATTENTION:
                yield _fused(node, integers, merged[bias], _mask(optimized, mask))


def _mask(
    optimized: onnx.ModelProto, mask: str
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes that give the mask, and their constants."""
    nodes = nodes_between(optimized, [MASK], [mask])
    read = {name for node in nodes for name in node.input}
    return nodes, [each for name, each in constants_of(optimized).items() if name in read]


def constants_of(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Return a graph's constants by name."""
    return {each.name: each for each in model.graph.initializer}


def products_of(floats: onnx.ModelProto) -> dict[str, dict[str, onnx.TensorProto]]:
    """Return the products with a weight: activation -> output -> weight (inputs, outputs)."""
    weights = constants_of(floats)
    products: dict[str, dict[str, onnx.TensorProto]] = {}
    for node in floats.graph.node:
        if node.op_type == "MatMul" and node.input[1] in weights:
            products.setdefault(node.input[0], {})[node.output[0]] = weights[node.input[1]]
    return products


def _has_an_8_bit_form(node: onnx.NodeProto) -> bool:
    others = {each.name for each in node.attribute} - SHARED_ATTRIBUTES
    shared, more = node.input[:SHARED_INPUTS], node.input[SHARED_INPUTS:]
    return not others and len(shared) == SHARED_INPUTS and all(shared) and not any(more)


def _in_order(
    merged: onnx.TensorProto, products: Mapping[str, onnx.TensorProto]
) -> tuple[str, ...]:
    """Return the outputs of the products whose weights were merged: query, key, value."""
    weights = {name: numpy_helper.to_array(weight) for name, weight in products.items()}
    parts = np.split(numpy_helper.to_array(merged), PRODUCTS_OF_ATTENTION, axis=1)
    for names in itertools.permutations(weights, PRODUCTS_OF_ATTENTION):
        if all(map(np.array_equal, parts, (weights[name] for name in names))):
            return names
    return ()


def _all_integers(
    quantized: onnx.ModelProto, activation: str, outputs: Sequence[str]
) -> list[_Integers]:
    """Return the products that are quantized dynamically, of those with these outputs."""
    products = (_integers(quantized, activation, name) for name in outputs)
    return [each for each in products if each is not None]


def _integers(quantized: onnx.ModelProto, activation: str, output: str) -> _Integers | None:
    """Return a product as it is quantized; None where it is not, or not dynamically."""
    between = nodes_between(quantized, [activation], [output])
    nodes = {node.op_type: node for node in between}
    if not {"DynamicQuantizeLinear", "MatMulInteger"} <= nodes.keys():
        return None
    constants, rounding = constants_of(quantized), nodes["DynamicQuantizeLinear"]
    _, weight, _, zero_point = nodes["MatMulInteger"].input
    # the scales of both sides are multiplied with one another, then with the sums
    factors = [node for node in between if rounding.output[1] in node.input]
    (scale,) = (name for node in factors for name in node.input if name in constants)
    columns = constants[weight].dims[1:]
    return _Integers(
        rounding,
        weight,
        numpy_helper.to_array(constants[weight]),
        np.broadcast_to(numpy_helper.to_array(constants[scale]), columns),
        np.broadcast_to(numpy_helper.to_array(constants[zero_point]), columns),
    )


def _fused(
    node: onnx.NodeProto,
    integers: Sequence[_Integers],
    bias: onnx.TensorProto,
    mask: tuple[Sequence[onnx.NodeProto], Sequence[onnx.TensorProto]],
) -> FusedAttention:
    """Return the operator of 8 bits for one of floats."""
    constants = _merged(integers)
    weight, scale, zero_point = (each.name for each in constants)
    rounded, *factors = integers[0].rounding.output  # its scale, and its zero point
    inputs = [rounded, weight, bias.name, factors[0], scale, node.input[3], factors[1], zero_point]
    fused = helper.make_node(
        FUSED_ATTENTION,
        inputs,
        list(node.output),
        name=f"{node.output[0]}/{FUSED_ATTENTION}",
        domain=RUNTIME_DOMAIN,
    )
    fused.attribute.extend(node.attribute)
    masks, of_masks = mask
    return FusedAttention(fused, masks, [*constants, bias, *of_masks])


def _merged(integers: Sequence[_Integers]) -> list[onnx.TensorProto]:
    """Return the weight, the scales and the zero points of three products as one."""
    # layers that share their weights share the merged ones, too
    name = "+".join(each.name for each in integers)
    arrays = {
        name: np.concatenate([each.weight for each in integers], axis=1),
        f"{name}_scale": np.concatenate([each.scale for each in integers]),
        f"{name}_zero_point": np.concatenate([each.zero_point for each in integers]),
    }
    return [numpy_helper.from_array(array, key) for key, array in arrays.items()]
