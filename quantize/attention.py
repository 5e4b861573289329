"""Fusing parts of a dynamically quantized graph into operators that only ONNX Runtime has.

With ONNX's standard operators, query, key and value are three products, whose outputs are
transposed for each head. QAttention multiplies once and transposes nothing. DynamicQuantizeMatMul
rounds an activation and multiplies it, which has ARM kernels; ONNX Runtime creates it itself, but
not for query, key and value, which share a rounding. Both use the integers and scales of the plain
graph. The gates undo both fusions (`in_plain_form`), judge the products one by one, and compare
each QAttention with the operators that it replaces.
"""

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
from bertender.models.graphs import WRITTEN_ATTENTION, add_runtime_domain, optimized, save_graph
from bertender.models.onnx_session import MOST_MB, RUNTIME_DOMAIN
from bertender.models.steps import FUSIONS, NEVER_SEEN
from quantize.graph import (
    FUSED_ATTENTION,
    FUSED_PRODUCT,
    PRODUCTS_OF_ATTENTION,
    constants_of,
    makers_of,
    nodes_between,
    replace_nodes,
)

Array = npt.NDArray[Any]
ONLY_ATTENTION = "enable_attention"
MASK = "attention_mask"
"""Input of the graph."""
SHARED_ATTRIBUTES = frozenset({"num_heads", "mask_filter_value", "scale", "unidirectional"})
"""Attributes that Attention and QAttention share; an Attention with others cannot be replaced."""
SHARED_INPUTS = 4
"""Shared inputs: the activation, the weight, the bias, the mask."""


@dataclass(frozen=True)
class Integers:
    """A quantized product: query, key or value."""

    name: str
    """Name of the weight."""
    weight: Array
    """(inputs, outputs)"""
    scale: Array
    """(outputs,)"""
    zero_point: Array
    """(outputs,)"""
    rounding: onnx.NodeProto
    """DynamicQuantizeLinear node of its activation."""
    scale_name: str


def check_attention(model: PreTrainedModel) -> None:
    """Raise ModelError if a model family's attention cannot become a QAttention."""
    row = FUSIONS.get(family_name(model.config), NEVER_SEEN)
    if row.obstacle_in_8_bits:
        fused = ", ".join(
            name for name, each in sorted(FUSIONS.items()) if not each.obstacle_in_8_bits
        )
        raise ModelError(
            f"the attention of a {model.config.model_type!r} model cannot become one 8-bit "
            f"operator: {row.obstacle_in_8_bits}. Leave --fused-attention out; it works for "
            f"{fused}."
        )


def fuse_attention(float_graph: Path, quantized_graph: Path) -> int:
    """Fuse each attention of a quantized graph into one operator, in its file.

    Args:
        float_graph: graph before quantization.
        quantized_graph: graph with dynamic products. An attention with a float product is skipped.

    Returns:
        The number of attentions that are one operator, now or already in the float graph; the
        latter have float scores, and their products with weights are quantized like others.

    Raises:
        ModelError: no attention can be fused. The file is unchanged.
    """
    floats, quantized = onnx.load(float_graph), onnx.load(quantized_graph)
    if written := [node for node in floats.graph.node if node.op_type == WRITTEN_ATTENTION]:
        return len(written)
    fused = optimized(float_graph, fuse=True, only=ONLY_ATTENTION)
    merged, products = constants_of(fused), products_of(floats)
    nodes, constants = list[onnx.NodeProto](), list[onnx.TensorProto]()
    operators = []
    for node in fused.graph.node:
        if node.op_type != "Attention" or not _has_an_8_bit_form(node):
            continue
        activation, weight, bias, mask = node.input[:SHARED_INPUTS]
        outputs = _in_order(merged[weight], products.get(activation, {}))
        integers = [_integers(quantized, activation, name) for name in outputs]
        known = [each for each in integers if each is not None]
        if len(known) < PRODUCTS_OF_ATTENTION:
            continue
        masks = nodes_between(fused, [MASK], [mask])
        read = {name for each in masks for name in each.input}
        operator, stored = _operator(node, known)
        operators.append(operator)
        nodes += [*masks, operator]
        constants += [*stored, merged[bias]]
        constants += [constant for name, constant in merged.items() if name in read]
    if not operators:
        raise ModelError(
            "no attention of this graph can become one 8-bit operator: ONNX Runtime's optimizer "
            "finds none, or its products are float. Leave --fused-attention out, or quantize an "
            "export with --optimize fused if its family is modernbert."
        )
    add_runtime_domain(quantized)
    replaced = {name for each in operators for name in each.output}
    others = [node for node in quantized.graph.node if replaced.isdisjoint(node.output)]
    save_graph(rewritten(quantized, [*others, *nodes], constants), quantized_graph, MOST_MB)
    return len(operators)


def fuse_products(graph: Path) -> int:
    """Fuse each dynamic product with the rounding of its activation, in the graph's file.

    ONNX Runtime's ARM kernels with SME need weights with zero points of 0.

    Returns:
        The number of fused products.
    """
    model = onnx.load(graph)
    constants, makers = constants_of(model), makers_of(model)
    readers = {name: node for node in model.graph.node for name in node.input}
    operators = []
    for node in model.graph.node:
        if node.op_type != "MatMulInteger" or node.input[1] not in constants:
            continue
        rounding, weight = makers[node.input[0]], node.input[1]
        product = readers[readers[node.output[0]].output[0]]  # the scaled sums
        integers = _integers(model, rounding.input[0], product.output[0])
        if integers is None or integers.zero_point.any():
            continue
        operators.append(
            helper.make_node(
                FUSED_PRODUCT,
                [rounding.input[0], weight, integers.scale_name, node.input[3]],
                list(product.output),
                name=f"{product.output[0]}/{FUSED_PRODUCT}",
                domain=RUNTIME_DOMAIN,
            )
        )
    if operators:
        add_runtime_domain(model)
        save_graph(rewritten(model, [*operators, *model.graph.node], []), graph, MOST_MB)
    return len(operators)


def rewritten(
    model: onnx.ModelProto,
    nodes: Iterable[onnx.NodeProto],
    constants: Iterable[onnx.TensorProto],
) -> onnx.ModelProto:
    """Return a graph with other nodes, in any order, without unread nodes and constants.

    Args:
        model: graph, changed in place.
        nodes: all nodes. Of several with the same output, the first is used.
        constants: new constants; equal names, also of the graph's own, are added once.
    """
    # it imports the optimizer, which most quantizations do not need
    from onnxruntime.transformers.onnx_model import OnnxModel

    known = constants_of(model)
    new = {each.name: each for each in constants if each.name not in known}
    computed: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        computed.setdefault(next(filter(None, node.output)), node)
    del model.graph.value_info[:]
    replace_nodes(model, computed.values())
    model.graph.initializer.extend(new.values())
    made = OnnxModel(model)
    made.prune_graph(allow_remove_graph_inputs=False)
    made.topological_sort()
    return model


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
    """Return the outputs of the products whose weights were merged, in the order query, key,
    value."""
    weights = {name: numpy_helper.to_array(weight) for name, weight in products.items()}
    parts = np.split(numpy_helper.to_array(merged), PRODUCTS_OF_ATTENTION, axis=1)
    for names in itertools.permutations(weights, PRODUCTS_OF_ATTENTION):
        if all(map(np.array_equal, parts, (weights[name] for name in names))):
            return names
    return ()


def _integers(quantized: onnx.ModelProto, activation: str, output: str) -> Integers | None:
    """Return a dynamically quantized product; None for other products."""
    between = nodes_between(quantized, [activation], [output])
    nodes = {node.op_type: node for node in between}
    if not {"DynamicQuantizeLinear", "MatMulInteger"} <= nodes.keys():
        return None
    constants, rounding = constants_of(quantized), nodes["DynamicQuantizeLinear"]
    _, weight, _, zero_point = nodes["MatMulInteger"].input
    # both scales are multiplied with one another, then with the sums
    factors = [node for node in between if rounding.output[1] in node.input]
    (scale,) = (name for node in factors for name in node.input if name in constants)
    columns = constants[weight].dims[1:]
    return Integers(
        weight,
        numpy_helper.to_array(constants[weight]),
        np.broadcast_to(numpy_helper.to_array(constants[scale]), columns),
        np.broadcast_to(numpy_helper.to_array(constants[zero_point]), columns),
        rounding,
        scale,
    )


def _operator(
    node: onnx.NodeProto, integers: Sequence[Integers]
) -> tuple[onnx.NodeProto, list[onnx.TensorProto]]:
    """Return the 8-bit operator for a float attention, with the constants of all three products."""
    # layers that share weights also share the merged weights
    weight = "+".join(each.name for each in integers)
    scale, zero_point = f"{weight}_scale", f"{weight}_zero_point"
    arrays = {
        weight: np.concatenate([each.weight for each in integers], axis=1),
        scale: np.concatenate([each.scale for each in integers]),
        zero_point: np.concatenate([each.zero_point for each in integers]),
    }
    rounded, factor, offset = integers[0].rounding.output
    bias, mask = node.input[2:SHARED_INPUTS]
    fused = helper.make_node(
        FUSED_ATTENTION,
        [rounded, weight, bias, factor, scale, mask, offset, zero_point],
        list(node.output),
        name=f"{node.output[0]}/{FUSED_ATTENTION}",
        domain=RUNTIME_DOMAIN,
    )
    fused.attribute.extend(node.attribute)
    return fused, [numpy_helper.from_array(array, name) for name, array in arrays.items()]


@dataclass(frozen=True)
class _Third:
    """The third of an operator for query, key or value."""

    weight: Array
    """(inputs, outputs)"""
    bias: Array
    """(outputs,)"""
    scale: Array
    """(outputs,)"""
    zero_point: Array
    """(outputs,)"""


def in_plain_form(float_graph: Path, quantized_graph: Path, folder: Path) -> Path:
    """Return a graph without these operators: the same file, or a new one in `folder`.

    Its structure is that of the float graph; integers, scales and biases are those of the
    operators. Products can then be compared with the float ones one by one, and a QAttention with
    its three products.

    Args:
        float_graph: graph before quantization.
        quantized_graph: graph to be served.
        folder: folder for a new file.

    Raises:
        ModelError: an operator matches no attention of the float graph.
    """
    stored = onnx.load(quantized_graph, load_external_data=False).graph.node
    if not {FUSED_ATTENTION, FUSED_PRODUCT} & {node.op_type for node in stored}:
        return quantized_graph
    floats, model = onnx.load(float_graph), onnx.load(quantized_graph)
    nodes, constants = list[onnx.NodeProto](), list(floats.graph.initializer)
    try:
        for node in model.graph.node:
            if node.op_type == FUSED_ATTENTION:
                plain, own = _plain(node, floats, model)
                nodes += plain
                constants += own
            elif node.op_type == FUSED_PRODUCT:
                nodes += _plain_product(node)
            else:
                nodes.append(node)
        made = rewritten(model, nodes, constants)
    except (KeyError, ValueError) as error:
        raise ModelError(
            f"the operators of {quantized_graph} have wrong inputs ({error}): the file is damaged. "
            "Quantize the float graph again."
        ) from None
    save_graph(made, folder / "plain.onnx", MOST_MB)
    return folder / "plain.onnx"


def _plain_product(operator: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    activation, weight, scale, zero_point = operator.input
    (product,) = operator.output
    outputs = [f"{activation}/{name}" for name in ("rounded", "factor", "offset")]
    rounding = helper.make_node("DynamicQuantizeLinear", [activation], outputs, outputs[0])
    yield rounding  # products of the same activation share the first
    yield from _dynamic(product, rounding, weight, scale, zero_point)


def _plain(
    operator: onnx.NodeProto, floats: onnx.ModelProto, model: onnx.ModelProto
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """Return the nodes replaced by an operator, and their new constants."""
    rounding = makers_of(model)[operator.input[0]]
    starts = [rounding.input[0], *(entry.name for entry in floats.graph.input)]
    between = nodes_between(floats, starts, list(operator.output))
    stored = constants_of(model)
    thirds = [
        _Third(*each)
        for each in zip(
            *(
                np.split(numpy_helper.to_array(stored[operator.input[place]]), 3, -1)
                for place in (1, 2, 4, 7)  # weight, bias, scale, zero point
            ),
            strict=True,
        )
    ]
    nodes, constants = list[onnx.NodeProto](), list[onnx.TensorProto]()
    weights = products_of(floats).get(rounding.input[0], {})
    for product, third in _assigned(thirds, weights).items():
        own = (f"{product}/{name}" for name in ("weight", "scale", "zero_point"))
        nodes += _dynamic(product, rounding, *own)
        for node in between:
            if product in node.input:  # the addition of the bias, now in the operator
                added = onnx.NodeProto()
                added.CopyFrom(node)
                del added.input[:]
                added.input.extend([product, f"{product}/bias"])
                nodes.append(added)
        constants += [
            numpy_helper.from_array(array, f"{product}/{name}")
            for name, array in vars(third).items()
        ]
    return [*nodes, *between], constants


def _assigned(
    thirds: Sequence[_Third], weights: Mapping[str, onnx.TensorProto]
) -> Mapping[str, _Third]:
    """Return the product of each third, by its output: the product with the nearest weights.

    Raises:
        ModelError: there are fewer than three products.
    """
    if len(weights) < PRODUCTS_OF_ATTENTION:
        raise ModelError(
            f"the float graph has {len(weights)} products for a fused attention, which needs "
            f"{PRODUCTS_OF_ATTENTION}. Give the float graph that it was quantized from."
        )
    floats = {name: numpy_helper.to_array(weight) for name, weight in weights.items()}
    errors = {}
    for place, third in enumerate(thirds):
        rounded = (third.weight.astype(np.float32) - third.zero_point) * third.scale
        for name, weight in floats.items():
            if weight.shape == rounded.shape:
                errors[place, name] = float(np.square(rounded - weight).sum())
    orders = itertools.permutations(floats, PRODUCTS_OF_ATTENTION)
    nearest = min(orders, key=lambda names: sum(errors.get(each, inf) for each in enumerate(names)))
    return dict(zip(nearest, thirds, strict=True))


def _dynamic(
    product: str, rounding: onnx.NodeProto, weight: str, scale: str, zero_point: str
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of an integer product, as scheme `dynamic` writes it.

    Args:
        product: output of the product.
        rounding: rounding of the activation.
        weight: name of a constant, as are scale and zero point.
        scale: scale of each output.
        zero_point: zero point of each output.
    """
    rounded, factor, offset = rounding.output
    integers, sums, scales = (f"{product}/{name}" for name in ("integers", "sums", "scales"))
    nodes: list[tuple[str, list[str], str, dict[str, Any]]] = [
        ("MatMulInteger", [rounded, weight, offset, zero_point], integers, {}),
        ("Cast", [integers], sums, {"to": TensorProto.FLOAT}),
        ("Mul", [factor, scale], scales, {}),
        ("Mul", [sums, scales], product, {}),
    ]
    for operator, inputs, output, attributes in nodes:
        yield helper.make_node(operator, inputs, [output], f"{output}/{operator}", **attributes)
