"""A graph whose attentions are one operator each, in ONNX's own operators again, to be judged.

The structure is the float graph's; the integers, scales and biases are the operator's. So its
products can be compared with their float twins one by one, and the operator with all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertender.core.errors import ModelError
from bertender.models.graph_file import MOST_MB, save_graph
from quantize.attention import rewritten
from quantize.attention_operators import (
    constants_of,
    products_of,
)
from quantize.cuts import nodes_between
from quantize.graph import FUSED_ATTENTION, PRODUCTS_OF_ATTENTION

__all__ = ["in_plain_form"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class _Third:
    """The part of an operator that is the query's, the key's or the value's."""

    weight: Array
    """(inputs, outputs)"""
    bias: Array
    """(outputs,)"""
    scale: Array
    """(outputs,)"""
    zero_point: Array
    """(outputs,)"""

    @property
    def floats(self) -> Array:
        """The weight, as near to the float one as rounding leaves it."""
        return (self.weight.astype(np.float32) - self.zero_point) * self.scale


def in_plain_form(float_graph: Path, quantized_graph: Path, folder: Path) -> Path:
    """Return a graph without QAttention: the same one, or, where it has some, one in `folder`.

    Args:
        float_graph: what the other was made of.
        quantized_graph: as it will be opened.
        folder: where to write.

    Raises:
        ModelError: an operator is of no attention of the float graph.
    """
    nodes = onnx.load(quantized_graph, load_external_data=False).graph.node
    if all(node.op_type != FUSED_ATTENTION for node in nodes):
        return quantized_graph
    floats, model = onnx.load(float_graph), onnx.load(quantized_graph)
    try:
        plain = _without_operators(floats, model)
    except (KeyError, ValueError) as error:
        raise ModelError(
            f"the operators of {quantized_graph} do not read what they should ({error}): the file "
            "is damaged. Quantize the float graph again."
        ) from None
    path = folder / "plain.onnx"
    save_graph(plain, path, MOST_MB)
    return path


def _without_operators(floats: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    operators = [node for node in model.graph.node if node.op_type == FUSED_ATTENTION]
    nodes = [node for node in model.graph.node if node.op_type != FUSED_ATTENTION]
    constants = list(floats.graph.initializer)
    for operator in operators:
        plain, stored = _plain(operator, floats, model)
        nodes += plain
        constants += stored
    return rewritten(model, nodes, constants)


def _plain(
    operator: onnx.NodeProto, floats: onnx.ModelProto, model: onnx.ModelProto
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes that an operator stands for, and the constants of those that are new."""
    rounding = _maker(model, operator.input[0])
    starts = [rounding.input[0], *(entry.name for entry in floats.graph.input)]
    between = nodes_between(floats, starts, list(operator.output))
    nodes, constants = list[onnx.NodeProto](), list[onnx.TensorProto]()
    weights = products_of(floats).get(rounding.input[0], {})
    for product, third in _assigned(_thirds(operator, model), weights).items():
        nodes += _dynamic(product, rounding)
        nodes += [_with_bias(node, product) for node in between if product in node.input]
        constants += [
            numpy_helper.from_array(array, f"{product}/{name}")
            for name, array in vars(third).items()
        ]
    return [*nodes, *between], constants


def _maker(model: onnx.ModelProto, tensor: str) -> onnx.NodeProto:
    makers: dict[str, onnx.NodeProto] = {
        name: node for node in model.graph.node for name in node.output
    }
    return makers[tensor]


def _thirds(operator: onnx.NodeProto, model: onnx.ModelProto) -> list[_Third]:
    """Return the query's, the key's and the value's part of an operator's constants."""
    constants = constants_of(model)
    weight, bias, scale, zero_point = (
        np.split(numpy_helper.to_array(constants[operator.input[place]]), PRODUCTS_OF_ATTENTION, -1)
        for place in (1, 2, 4, 7)
    )
    return [_Third(*each) for each in zip(weight, bias, scale, zero_point, strict=True)]


def _assigned(
    thirds: Sequence[_Third], weights: Mapping[str, onnx.TensorProto]
) -> Mapping[str, _Third]:
    """Return the product that each third is of, by its output: the nearest weights are its own.

    Raises:
        ModelError: there are fewer products.
    """
    if len(weights) < PRODUCTS_OF_ATTENTION:
        raise ModelError(
            f"the float graph has {len(weights)} products where an attention is one operator, "
            f"{PRODUCTS_OF_ATTENTION} are needed. Give the float graph that the other was made of."
        )
    floats = {name: numpy_helper.to_array(weight) for name, weight in weights.items()}
    errors = {
        (place, name): float(np.square(third.floats - floats[name]).sum())
        for place, third in enumerate(thirds)
        for name in floats
        if floats[name].shape == third.weight.shape
    }
    orders = itertools.permutations(floats, PRODUCTS_OF_ATTENTION)
    nearest = min(orders, key=lambda names: sum(errors.get(each, inf) for each in enumerate(names)))
    return dict(zip(nearest, thirds, strict=True))


def _dynamic(product: str, rounding: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Return a product by integers as scheme `dynamic` writes it; constants are named by _Third."""
    rounded, factor, zero_point = rounding.output
    weight, scale, weight_zero_point, integers, sums, scales = (
        f"{product}/{name}"
        for name in ("weight", "scale", "zero_point", "integers", "sums", "scales")
    )
    operands = [rounded, weight, zero_point, weight_zero_point]
    nodes = [
        helper.make_node("MatMulInteger", operands, [integers]),
        helper.make_node("Cast", [integers], [sums], to=TensorProto.FLOAT),
        helper.make_node("Mul", [factor, scale], [scales]),
        helper.make_node("Mul", [sums, scales], [product]),
    ]
    _name(nodes)
    return nodes


def _name(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        node.name = f"{node.output[0]}/{node.op_type}"


def _with_bias(added: onnx.NodeProto, product: str) -> onnx.NodeProto:
    """Return the addition of a bias to a product, with the operator's bias."""
    made = onnx.NodeProto()
    made.CopyFrom(added)
    del made.input[:]
    made.input.extend([product, f"{product}/bias"])
    return made
