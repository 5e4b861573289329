"""Attentions of a dynamically quantized graph as one operator each, and back in plain operators."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import family_name
from bertender.models.graphs import RUNTIME_DOMAIN, add_runtime_domain, optimized, save_graph
from bertender.models.onnx_session import MOST_MB
from bertender.models.own_models import FUSIONS, NEVER_SEEN
from quantize.graph import FUSED_ATTENTION, PRODUCTS_OF_ATTENTION, nodes_between

# --- from quantize.attention_operators
# Attentions of a dynamically quantized graph: where they are, and the operator for each.

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
                yield _fused_attention_operators(
                    node, integers, merged[bias], _mask(optimized, mask)
                )


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


def _fused_attention_operators(
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


# --- from quantize.attention
# Attentions of a dynamically quantized graph as one operator each: ONNX Runtime's QAttention.
#
# In ONNX's own operators, query, key and value are three products, and their outputs are
# transposed
# for each head. QAttention multiplies once and transposes nothing. It gets the integers and the
# scales of the plain graph. The gates take them out of it again (`in_plain_form`), judge the
# products
# one by one, and compare each operator with the operators that it replaces.

ONLY_ATTENTION = "enable_attention"


def fuse_attention(float_graph: Path, quantized_graph: Path) -> int:
    """Make one operator of each attention of a quantized graph, and replace its file.

    Args:
        float_graph: what the other was made of.
        quantized_graph: its products are dynamic. An attention with a float product is left.

    Returns:
        The number of attentions that are one operator now.

    Raises:
        ModelError: there is none. The file is not changed.
    """
    floats, quantized = onnx.load(float_graph), onnx.load(quantized_graph)
    fused = [
        *find_attentions(optimized(float_graph, fuse=True, only=ONLY_ATTENTION), floats, quantized)
    ]
    if not fused:
        raise ModelError(
            "no attention of this graph can be one operator of 8 bits: ONNX Runtime's optimizer "
            "finds none in it, or its products are float. Leave --fused-attention out."
        )
    save_graph(_fused(quantized, fused), quantized_graph, MOST_MB)
    return len(fused)


def check_attention(model: PreTrainedModel) -> None:
    """Raise ModelError where the plain export of a model's family has no attention to fuse."""
    row = FUSIONS.get(family_name(model.config), NEVER_SEEN)
    if row.obstacle_in_a_plain_export:
        fused = ", ".join(
            name for name, each in sorted(FUSIONS.items()) if not each.obstacle_in_a_plain_export
        )
        raise ModelError(
            f"no attention of a {model.config.model_type!r} model can be one operator of 8 bits: "
            f"{row.obstacle_in_a_plain_export}. Leave --fused-attention out; it is for {fused}."
        )


def _fused(model: onnx.ModelProto, fused: Sequence[FusedAttention]) -> onnx.ModelProto:
    add_runtime_domain(model)
    replaced = {name for each in fused for name in each.node.output}
    others = [node for node in model.graph.node if replaced.isdisjoint(node.output)]
    nodes = [node for each in fused for node in (*each.masks, each.node)]
    constants = [tensor for each in fused for tensor in each.constants]
    return rewritten(model, [*others, *nodes], constants)


def rewritten(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    constants: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a graph of other nodes, in any order, without those and the constants not read.

    Args:
        model: changed in place.
        nodes: all of them. Of those with the same output, the first one stands.
        constants: new ones. Of those with the same name, the graph's own among them, one stands.
    """
    from onnxruntime.transformers.onnx_model import OnnxModel

    graph, known = model.graph, {each.name for each in model.graph.initializer}
    new = {each.name: each for each in constants if each.name not in known}
    computed: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        computed.setdefault(next(filter(None, node.output)), node)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(computed.values())
    graph.initializer.extend(new.values())
    made = OnnxModel(model)
    made.prune_graph(allow_remove_graph_inputs=False)
    made.topological_sort()
    return model


# --- from quantize.plain_attention
# A graph whose attentions are one operator each, in ONNX's own operators again, to be judged.
#
# The structure is the float graph's; the integers, scales and biases are the operator's. So its
# products can be compared with their float twins one by one, and the operator with all of them.


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
