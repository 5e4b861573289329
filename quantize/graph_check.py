"""Checks of everything in a quantized graph but its products: the float nodes, fused attention."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from bertender.core.errors import GateError, ModelError
from bertender.models.onnx_session import open_session
from quantize.context import Batches
from quantize.graph import (
    FOUR_BIT_LOOKUP,
    FUSED_ATTENTION,
    TOLERATED,
    Inventory,
    TensorDifference,
    largest,
    nodes_between,
    open_watched,
    relative_difference,
    run_with,
    take_inventory,
)

# --- from quantize.rest
# Check that everything that was not quantized is the same as in the float graph.
#
# The float graph runs once more, on what the products and tables of the quantized one gave: each
# part between two products is so compared alone, and rounding does not grow from layer to layer.
# A
# mask that is ignored, a position off by one, token types that are dropped or another GELU are
# found
# here, where they sit; in the logits they are lost among the errors of 8 bits.

Array = npt.NDArray[Any]
SHOWN = 5


@dataclass(frozen=True)
class _Cut:
    """The float graph without its quantized nodes: what those gave is read as input."""

    model: onnx.ModelProto
    produced: tuple[str, ...]
    """Outputs of the quantized nodes."""
    asked: Mapping[str, str]
    """Inputs of the quantized nodes, and the graph's outputs: tensor here -> in the other graph."""


def compare_rest(
    float_graph: Path, quantized_graph: Path, batches: Batches
) -> tuple[TensorDifference, ...]:
    """Compare the tensors between the quantized parts of a graph with the float graph.

    Args:
        float_graph: what the other was made of.
        quantized_graph: as a scheme wrote it; tensors have the names of the float graph.
        batches: real texts, padded to each batch's longest.
    """
    parts = _parts(take_inventory(float_graph))
    quantized = onnx.load(quantized_graph, load_external_data=False)
    cut = _cut_float(onnx.load(float_graph), quantized, parts)
    with TemporaryDirectory() as folder:
        rest = Path(folder) / "rest.onnx"
        onnx.save(cut.model, rest, save_as_external_data=True)  # above 2 GB, too
        whole = open_watched(quantized_graph, (*cut.produced, *cut.asked.values()), Path(folder))
        sessions = open_session(rest), whole
        return largest(
            each
            for batch in itertools.chain(batches, [batches.of_two_lengths()])
            for each in _differences(cut, *sessions, batch.arrays)
        )


def check_rest(findings: Sequence[TensorDifference]) -> None:
    """Raise GateError where something besides the products differs from the float graph."""
    beyond = [each for each in findings if not each.is_tolerated]
    if beyond:
        listed = "; ".join(f"{each.tensor}: {each.difference:.2g}" for each in beyond[:SHOWN])
        raise GateError(
            f"{len(beyond)} of {len(findings)} tensors between quantized products are not what "
            f"the float graph computes from the same products, off by more than {TOLERATED:g} of "
            f"their size. {listed}. Something besides the products was changed: quantize the graph "
            "of `bertender export` again."
        )


def _parts(inventory: Inventory) -> frozenset[str]:
    """Return the nodes that schemes quantize; what else differs is compared.

    Products of constants are among them: their weight may be that of a quantized product. They are
    judged with the others, by `judge_products`.
    """
    products = (each.node for each in (*inventory.products, *inventory.of_constants))
    return frozenset((*products, *inventory.tables, *inventory.lstms))


def _cut_float(floats: onnx.ModelProto, quantized: onnx.ModelProto, parts: Container[str]) -> _Cut:
    """Take the parts out of a float graph that stand otherwise in the quantized one."""
    same = {*_signatures(quantized)}
    changed = [
        node
        for node, signature in zip(floats.graph.node, _signatures(floats), strict=True)
        if node.name in parts and signature not in same
    ]
    produced = tuple(dict.fromkeys(name for node in changed for name in node.output if name))
    constants = {item.name for item in floats.graph.initializer}
    asked = {output.name: output.name for output in floats.graph.output}
    makers = {name: node for node in quantized.graph.node for name in node.output}
    for node in changed:
        asked |= {name: name for name in node.input if name}
        if node.op_type == "Gather":
            asked[node.input[1]] = _looked_up(makers, node)
    asked = {name: other for name, other in asked.items() if name not in {*constants, *produced}}
    _check_names(quantized, (*produced, *asked.values()))
    return _Cut(_without(floats, changed, produced, asked), produced, asked)


def _looked_up(makers: Mapping[str, onnx.NodeProto], lookup: onnx.NodeProto) -> str:
    """Return the tensor of row numbers that the quantized form of a look-up reads."""
    maker = makers.get(lookup.output[0])
    while maker is not None and maker.op_type not in ("Gather", FOUR_BIT_LOOKUP):
        maker = makers.get(maker.input[0])
    return str((maker or lookup).input[1])


def _signatures(model: onnx.ModelProto) -> Iterator[tuple[Any, ...]]:
    """Yield of each node what it reads, and what of this is a constant.

    A weight that another product shares is computed in the quantized graph, under its old name.
    """
    constants = {item.name for item in model.graph.initializer}
    for node in model.graph.node:
        yield node.name, node.op_type, *((name, name in constants) for name in node.input)


def _check_names(quantized: onnx.ModelProto, names: Sequence[str]) -> None:
    """Raise ModelError where the quantized graph has no tensor of a name: it is of another one."""
    known = {entry.name for entry in quantized.graph.input}
    known |= {name for node in quantized.graph.node for name in node.output}
    if lacking := [name for name in names if name not in known]:
        raise ModelError(
            f"the quantized graph has no tensor {lacking[0]!r}, which the float graph computes "
            f"({len(lacking)} are missing). Give the float graph that it was made of."
        )


def _without(
    model: onnx.ModelProto,
    changed: Sequence[onnx.NodeProto],
    produced: Sequence[str],
    asked: Iterable[str],
) -> onnx.ModelProto:
    """Return the graph without some nodes: it reads their outputs and returns their inputs."""
    names = {node.name for node in changed}
    inputs = {entry.name for entry in model.graph.input}
    nodes = [node for node in model.graph.node if node.name not in names]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in produced
    )
    del model.graph.output[:]
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in asked if name not in inputs
    )
    del model.graph.value_info[:]
    return model


def _differences(
    cut: _Cut, rest: Any, whole: Any, arrays: Mapping[str, Array]
) -> Iterator[tuple[str, float]]:
    """Yield each tensor that was asked for, with its relative difference for one batch."""
    values = run_with(whole, arrays, (*cut.produced, *cut.asked.values()))
    produced = {name: values[name] for name in cut.produced}
    wanted = run_with(rest, {**arrays, **produced}, cut.asked)
    for name, other in cut.asked.items():
        yield name, relative_difference(values[other], wanted[name])


# --- from quantize.attention_check
# Check that attention as one operator computes what the operators do that it stands for.
#
# Each operator runs alone, on the activation that the plain graph has there. Both multiply the
# same
# integers, so that only the order in which floats are added differs.


def compare_attentions(
    plain_graph: Path, graph: Path, batches: Batches
) -> tuple[TensorDifference, ...]:
    """Compare each attention that is one operator with the same in ONNX's own operators.

    Args:
        plain_graph: of `in_plain_form`.
        graph: as it will be opened; without such attentions there is nothing to compare.
        batches: real texts, padded to each batch's longest.
    """
    activations = _activations(onnx.load(graph, load_external_data=False))
    if not activations:
        return ()
    operators = _operators_alone(onnx.load(graph), activations)
    with TemporaryDirectory() as folder:
        names = (*activations, *activations.values())
        plain = open_watched(plain_graph, names, Path(folder))
        alone = open_session(operators.SerializeToString())
        return largest(
            each
            for batch in itertools.chain(batches, [batches.of_two_lengths()])
            for each in _differences_attention_check(
                alone, run_with(plain, batch.arrays, names), activations
            )
        )


def _differences_attention_check(
    alone: Any, wanted: Mapping[str, Array], attentions: Container[str]
) -> Iterator[tuple[str, float]]:
    """Yield each attention's output, and how far the operator's is from it."""
    known = {name: array for name, array in wanted.items() if name not in attentions}
    for name, actual in run_with(alone, known, wanted.keys() - known).items():
        if name in attentions:
            yield name, relative_difference(actual, wanted[name])


def check_attentions(findings: Sequence[TensorDifference]) -> None:
    """Raise ModelError where an operator computes something else; no other scheme mends that."""
    beyond = [each for each in findings if not each.is_tolerated]
    if beyond:
        worst = max(beyond, key=lambda each: each.difference)
        raise ModelError(
            f"{len(beyond)} of {len(findings)} attentions compute something else as one operator: "
            f"{worst.tensor} has a relative difference of {worst.difference:.2g}, allowed is "
            f"{TOLERATED:g}. Leave --fused-attention out."
        )


def _activations(model: onnx.ModelProto) -> dict[str, str]:
    """Return the attentions that are one operator: output -> activation."""
    rounded = {node.output[0]: node for node in model.graph.node}
    return {
        node.output[0]: rounded[node.input[0]].input[0]
        for node in model.graph.node
        if node.op_type == FUSED_ATTENTION
    }


def _operators_alone(model: onnx.ModelProto, activations: Mapping[str, str]) -> onnx.ModelProto:
    """Return a graph of the operators alone, which reads their activations."""
    starts = dict.fromkeys(activations.values())
    inputs = list(model.graph.input)
    nodes = nodes_between(model, [*starts, *(each.name for each in inputs)], [*activations])
    read = {name for node in nodes for name in node.input}
    made = helper.make_graph(
        nodes,
        "attentions",
        [each for each in inputs if each.name in read]
        + [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in starts],
        [onnx.ValueInfoProto(name=name) for name in activations],
        [each for each in model.graph.initializer if each.name in read],
    )
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=model.ir_version)
