"""Graphs of 16-bit weights: they open and answer on the CPU, and float16 never overflows unseen."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError, ParityError
from bertender.core.findings import LargestNumber
from bertender.gate.judge import TOLERANCES
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.steps import FUSIONS
from bertender.tasks.task import Task
from bertender.text.batch import Tokenize
from bertender.text.tokenizer import load_tokenizer
from export.config import ExportConfig
from export.exporter import export
from export.precision import (
    FLOAT16_LARGEST,
    PRECISIONS,
    SAFE_SHARE,
    check_overflow,
    largest_numbers,
)
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from tests.exports import PlainExport
from tests.toy_models import OWN_SHAPES, SHAPES, save_artifact, tiny_classifier

HALVES = [name for name in PRECISIONS if name != "float32"]


def test_every_precision_has_a_tolerance_and_a_flag() -> None:
    assert PRECISIONS.keys() <= TOLERANCES.keys()
    assert set(get_args(ExportConfig.model_fields["precision"].annotation)) == PRECISIONS.keys()


@pytest.mark.one_path
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("model_type", [*SHAPES, *OWN_SHAPES])
def test_every_architecture_answers_in_half_the_bytes(
    model_type: str, precision: str, task: Task, tmp_path: Path
) -> None:
    source = save_artifact(tiny_classifier(model_type, pad_token_id=0), task, tmp_path / "source")
    artifact = export(source, task, ExportConfig(precision=precision), tmp_path / "onnx")
    assert artifact.card.precision == precision
    assert (artifact.card.findings.numbers is not None) == (precision == "float16")
    graph = onnx.load(onnx_file(artifact))
    onnx.checker.check_model(graph)
    assert artifact.card.findings.graph.nodes == len(graph.graph.node)
    floats = weights_bytes(graph, onnx.TensorProto.FLOAT)
    halves = weights_bytes(graph, getattr(onnx.TensorProto, precision.upper()))
    assert floats < 0.2 * halves, "vectors of bfloat16 graphs stay in float32"
    session = open_classifier(artifact).predictor.session
    assert {entry.type for entry in session.get_inputs()} == {"tensor(int64)"}
    assert [(entry.name, entry.type) for entry in session.get_outputs()] == [
        ("logits", "tensor(float)")
    ]


def weights_bytes(graph: onnx.ModelProto, kind: int) -> int:
    return sum(len(item.raw_data) for item in graph.graph.initializer if item.data_type == kind)


@pytest.mark.one_path
@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("optimize", ["basic", "fused"])
@pytest.mark.parametrize("model_type", [name for name, row in FUSIONS.items() if not row.obstacle])
def test_optimised_graphs_are_converted_too(
    model_type: str, optimize: str, precision: str, task: Task, tmp_path: Path
) -> None:
    source = save_artifact(tiny_classifier(model_type, pad_token_id=0), task, tmp_path / "source")
    config = ExportConfig(precision=precision, optimize=optimize)
    artifact = export(source, task, config, tmp_path / "onnx")
    assert (artifact.card.findings.graph.fused != {}) == (optimize == "fused")


@pytest.mark.one_path
@pytest.mark.parametrize("precision", HALVES)
def test_weights_of_16_bits_are_not_quantized(
    precision: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    artifact = export(teacher, task, ExportConfig(precision=precision), tmp_path / "onnx")
    with pytest.raises(ModelError, match=f"is {precision} already. Give the float32 artifact"):
        quantize(artifact, task, QuantizeConfig(), tmp_path / "int8")


@pytest.mark.one_path
@pytest.mark.parametrize("precision", HALVES)
def test_weights_of_16_bits_may_lie_beside_the_graph(
    precision: str, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = ExportConfig(precision=precision, external_above_mb=0)
    artifact = export(teacher, task, config, tmp_path / "onnx")
    assert {"model.onnx", "model.onnx_data"} <= artifact.card.files.keys()


def reaching_far(task: Task, out: Path, factor: float) -> Artifact:
    """A BERT whose third layer's neurons are large, and answers as before: ReLU is linear."""
    model: Any = tiny_classifier("bert", hidden_act="relu", pad_token_id=0)
    layer = model.bert.encoder.layer[2]
    with torch.no_grad():
        layer.intermediate.dense.weight.mul_(factor)
        layer.intermediate.dense.bias.mul_(factor)
        layer.output.dense.weight.div_(factor)
    return save_artifact(model, task, out)


def test_activations_beyond_float16_are_refused_with_node_value_bound_and_next_step(
    task: Task, tmp_path: Path
) -> None:
    source = reaching_far(task, tmp_path / "source", 1e5)
    with pytest.raises(ModelError) as raised:
        export(source, task, ExportConfig(precision="float16"), tmp_path / "onnx")
    said = str(raised.value)
    assert "Add /bert/encoder/layer.2/intermediate/dense/Add reaches" in said
    assert "allowed is 3.275e+04, 0.5 of the largest float16" in said
    assert "--precision bfloat16 or float32, or --overflow allow" in said
    assert not (tmp_path / "onnx").exists()
    for precision in ("float32", "bfloat16"):
        export(source, task, ExportConfig(precision=precision), tmp_path / precision)


def test_overflow_that_is_allowed_is_warned_of_and_still_proven(
    task: Task, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = ExportConfig(precision="float16", overflow="allow")
    near = reaching_far(task, tmp_path / "near", 2.5e4)
    artifact = export(near, task, config, tmp_path / "near-onnx")
    assert "layer.2/intermediate" in caplog.text
    assert artifact.card.findings.numbers.largest > SAFE_SHARE * FLOAT16_LARGEST
    far = reaching_far(task, tmp_path / "far", 1e6)
    with pytest.raises(ParityError):
        export(far, task, config, tmp_path / "far-onnx")


@pytest.mark.one_path
@pytest.mark.parametrize("model_type", [*SHAPES, *OWN_SHAPES])
def test_every_activation_is_looked_at(
    model_type: str, task: Task, plain_export: PlainExport
) -> None:
    """ONNX Runtime itself says which tensors are floating-point; so does the check."""
    graph = onnx_file(plain_export(model_type)[1])
    encode = Tokenize(load_tokenizer(graph.parent))
    reaches = largest_numbers(graph, encode, task.dev.examples[:2])
    looked_at = {reach.place for reach in reaches if not reach.place.startswith("weight ")}
    model = onnx.load(graph)
    floating = floating_tensors(model)
    expected = {
        f"{node.op_type} {node.name}"
        for node in model.graph.node
        if node.op_type != "Constant" and floating & {*node.output}
    }
    assert looked_at >= expected - {f"Constant {node.name}" for node in model.graph.node}
    assert [reach.largest for reach in reaches] == sorted(
        (reach.largest for reach in reaches), reverse=True
    )


def floating_tensors(model: onnx.ModelProto) -> set[str]:
    import onnxruntime

    shown = {entry.name for entry in model.graph.output}
    for node in model.graph.node:
        for name in set(node.output) - shown - {""}:
            model.graph.output.append(onnx.ValueInfoProto(name=name))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return {entry.name for entry in session.get_outputs() if entry.type == "tensor(float)"}


@pytest.mark.one_path
@pytest.mark.parametrize("opset", [14, 20])
def test_float16_is_written_in_every_operator_set(
    opset: int, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    config = ExportConfig(precision="float16", opset=opset)
    assert export(teacher, task, config, tmp_path / "onnx").card.precision == "float16"


def test_without_held_out_texts_the_parity_gate_says_so(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    silent = replace(task, dev=task.dev.first(0))
    with pytest.raises(ParityError, match="no examples to compare"):
        export(teacher, silent, ExportConfig(precision="float16"), tmp_path / "onnx")


def test_weights_count_and_masks_do_not(tmp_path: Path, teacher: Artifact, task: Task) -> None:
    graph = onnx_file(export(teacher, task, ExportConfig(parity_texts=2), tmp_path / "onnx"))
    model = onnx.load(graph)
    weight = next(item for item in model.graph.initializer if item.name == "classifier.bias")
    numbers = np.array([-4e4, -np.inf], dtype=np.float32)
    weight.CopyFrom(onnx.numpy_helper.from_array(numbers, weight.name))
    onnx.save(model, graph)
    encode = Tokenize(load_tokenizer(graph.parent))
    reaches = largest_numbers(graph, encode, task.dev.examples[:2])
    found = {reach.place: reach.largest for reach in reaches}
    assert found["weight classifier.bias"] == pytest.approx(4e4)
    assert all(np.isfinite(value) for value in found.values())


@pytest.mark.parametrize(("largest", "refused"), [(3.2e4, False), (3.3e4, True)])
def test_half_of_what_float16_holds_is_allowed(
    largest: float, refused: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reaches = [
        LargestNumber(place=f"Add /{name}", largest=value, texts=5)
        for name, value in (("a", largest), ("b", 1.0))
    ]
    if not refused:
        check_overflow(reaches, allow=False)
        return
    with pytest.raises(ModelError, match=r"1 places .* on 5 texts: Add /a reaches 3\.3e\+04;"):
        check_overflow(reaches, allow=False)
    with caplog.at_level(logging.WARNING):
        check_overflow(reaches, allow=True)
    assert "Add /a" in caplog.text
