"""Check that attention as one operator computes what the operators do that it stands for.

Each operator runs alone, on the activation that the plain graph has there. Both multiply the same
integers, so that only the order in which floats are added differs.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from bertender.core.errors import ModelError
from bertender.models.onnx_session import open_session
from quantize.calibration import Batches
from quantize.cuts import nodes_between
from quantize.graph import FUSED_ATTENTION
from quantize.inner_tensors import (
    TOLERATED,
    TensorDifference,
    largest,
    open_watched,
    relative_difference,
    run_with,
)

__all__ = ["check_attentions", "compare_attentions"]

Array = npt.NDArray[Any]


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
            for each in _differences(alone, run_with(plain, batch.arrays, names), activations)
        )


def _differences(
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
