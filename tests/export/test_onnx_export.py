"""Exporting: the graph answers as its source on every shape, or nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, ParityError
from bertender.core.findings import Findings
from bertender.gate.cases import EDGE_TEXTS
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.onnx_session import open_session
from bertender.models.own_models import OWN_MODELS, PRUNABLE, expected_on_disk
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from export import exporter as onnx_export
from export.config import ExportConfig
from export.exporter import check_architecture, count_heads, export, write_onnx
from export.precision import LARGEST_FITTING, fit_half_range
from tests.exports import PlainExport
from tests.quick import quick
from tests.toy_models import (
    LONGEST,
    OWN_SHAPES,
    SHAPES,
    VOCABULARY,
    save_artifact,
    tiny_classifier,
)
from tests.toys import pair_task

SEGMENTED = {
    "albert",
    "bert",
    "big_bird",
    "electra",
    "ernie",
    "mobilebert",
    "nomic_bert",
    "roformer",
}
SEGMENTED |= {"camembert", "roberta", "xlm-roberta"}  # their toys have two token types
SEGMENTED |= {f"bertender-pruned-{name}" for name in SEGMENTED & PRUNABLE.keys()}
UNMASKED = {"bertender-bilstm", "bertender-static"}


QUICK_TYPES = (
    *("albert", "bert", "deberta-v2", "modernbert"),
    *("bertender-bilstm", "bertender-static"),
)


@pytest.fixture(scope="module", params=quick([*SHAPES, *OWN_SHAPES], *QUICK_TYPES))
def exported(
    request: pytest.FixtureRequest, plain_export: PlainExport
) -> tuple[Artifact, Artifact]:
    """A torch artifact of each architecture, and its export."""
    return plain_export(request.param)


def batch(rows: int, length: int) -> Batch:
    """Random words, the later rows shorter than the first and padded with 0."""
    generator = np.random.default_rng(rows * 100 + length)
    lengths = np.maximum(length - np.arange(rows) * 5, 1)
    mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
    ids = generator.integers(5, VOCABULARY, (rows, length)) * mask
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(mask)}
    return Batch((("",),) * rows, arrays)


@pytest.mark.parametrize(
    "model_type",
    quick(
        ["albert", "bert", "bertender-pruned-bert", "electra", "mobilebert"], "bert", "mobilebert"
    ),
)
def test_one_token_type(model_type: str, task: Task, tmp_path: Path) -> None:
    """As in a BERT that learns from an MPNet, whose tokenizer gives none."""
    model = tiny_classifier(model_type, type_vocab_size=1)
    source = save_artifact(model, task, tmp_path / "source")
    settings = source.path / "tokenizer_config.json"
    names = {"model_input_names": ["input_ids", "attention_mask"]}
    settings.write_text(json.dumps({**json.loads(settings.read_text()), **names}))
    exported = export(source, task, ExportConfig(parity_texts=8), tmp_path / "onnx")
    inputs = open_session(onnx_file(exported)).get_inputs()
    assert [each.name for each in inputs] == ["input_ids", "attention_mask"]


@pytest.mark.one_path
@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("length", [1, 2, 17, LONGEST])
def test_batch_and_length_are_dynamic(
    exported: tuple[Artifact, Artifact], rows: int, length: int
) -> None:
    reference, candidate = (open_classifier(artifact).predictor for artifact in exported)
    given = batch(rows, length)
    wanted = {k: v for k, v in given.arrays.items() if k in candidate.inputs}
    logits = reference.logits(Batch(given.examples, wanted))
    np.testing.assert_allclose(candidate.logits(given), logits, atol=1e-4)


def test_others_open_it_by_its_card_as_bertender_does(
    exported: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    """docs/how-to/export.md tells them to disable what the card lists."""
    _, artifact = exported
    findings, graph = artifact.card.findings, onnx_file(artifact)
    left_out = findings.left_out_optimizers
    assert left_out and findings.session_config
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "theirs.onnx")
    onnxruntime.InferenceSession(
        str(graph),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=[*left_out],
    )
    open_session(graph, optimized=tmp_path / "ours.onnx")
    theirs, ours = (
        [node.op_type for node in onnx.load(tmp_path / name).graph.node]
        for name in ("theirs.onnx", "ours.onnx")
    )
    assert theirs == ours


def test_the_gates_findings_are_kept(exported: tuple[Artifact, Artifact]) -> None:
    source, artifact = exported
    parity = artifact.card.findings.parity
    assert parity.passed and parity.agreement == 1.0
    assert parity.reference == source.name
    assert artifact.card.findings.parameters == open_classifier(source).parameters
    assert (artifact.card.kind, artifact.card.precision) == ("onnx", "float32")
    assert artifact.card.family == source.card.family
    assert artifact.card.parent is not None and artifact.card.parent.digest == source.digest


def test_the_inputs_are_the_architectures(exported: tuple[Artifact, Artifact]) -> None:
    source, artifact = exported
    inputs = open_classifier(artifact).predictor.inputs
    assert ("token_type_ids" in inputs) == (source.card.family in SEGMENTED)


@pytest.mark.one_path
def test_the_same_source_gives_the_same_bytes(
    exported: tuple[Artifact, Artifact], task: Task, tmp_path: Path
) -> None:
    source, artifact = exported
    report = write_onnx(source, task, ExportConfig(), tmp_path)
    assert (tmp_path / "model.onnx").read_bytes() == onnx_file(artifact).read_bytes()
    assert report.graph == artifact.card.findings.graph


def test_every_own_architecture_has_a_toy() -> None:
    assert OWN_MODELS.keys() == OWN_SHAPES.keys()


def test_no_number_of_a_mask_is_beyond_float16(exported: tuple[Artifact, Artifact]) -> None:
    graph = onnx.load(onnx_file(exported[1])).graph
    constants = [
        attribute.t
        for node in graph.node
        for attribute in node.attribute
        if attribute.type == onnx.AttributeProto.TENSOR
    ]
    arrays = [numpy_helper.to_array(tensor) for tensor in (*graph.initializer, *constants)]
    numbers = [array for array in arrays if array.dtype == np.float32 and np.isfinite(array).all()]
    masked = any((array == -1e4).any() for array in numbers)
    assert masked == (exported[0].card.family not in UNMASKED)
    assert max(np.abs(array).max(initial=0) for array in numbers) < 65504


@pytest.mark.parametrize("value", [1.0, 65504.0, 1e5, -3.4e38, -np.inf])
def test_only_single_finite_numbers_beyond_float16_are_brought_into_it(
    value: float,
) -> None:
    output = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    constant = numpy_helper.from_array(np.array(value, dtype=np.float32))
    weights = numpy_helper.from_array(np.full(2, value, dtype=np.float32), "weights")
    nodes = [
        helper.make_node("Constant", [], ["number"], value=constant),
        helper.make_node("Mul", ["number", "weights"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "graph", [], [output], [weights])
    model = helper.make_model(graph)
    fit_half_range(model)
    written = model.graph
    beyond = 65504 < abs(value) < np.inf
    expected = np.float32(np.sign(value) * LARGEST_FITTING if beyond else value)
    assert numpy_helper.to_array(written.node[0].attribute[0].t) == expected
    assert (numpy_helper.to_array(written.initializer[0]) == np.float32(value)).all()


def test_what_branches_read_stays() -> None:
    """An input that only they read, and a constant by another name."""
    then, otherwise = (
        helper.make_graph(
            [helper.make_node(kind, ["read", "alias"], [kind])],
            kind,
            [],
            [helper.make_tensor_value_info(kind, onnx.TensorProto.FLOAT, [1])],
        )
        for kind in ("Add", "Mul")
    )
    choose = helper.make_node("If", ["which"], ["y"], then_branch=then, else_branch=otherwise)
    graph = helper.make_graph(
        [helper.make_node("Identity", ["constant"], ["alias"]), choose],
        "graph",
        [
            helper.make_tensor_value_info("which", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("read", onnx.TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("unread", onnx.TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])],
        [numpy_helper.from_array(np.ones(1, np.float32), "constant")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx_export.drop_aliases(model)
    onnx_export.drop_unread(model)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    assert [each.name for each in session.get_inputs()] == ["which", "read"]
    given = {"which": np.array(True), "read": np.full(1, 2, np.float32)}
    assert session.run(None, given)[0] == 3


def test_the_bias_of_large_numbers_is_no_mask() -> None:
    """A model of prices has one bias, of their mean."""
    output = helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, None)
    given = helper.make_tensor_value_info("states", onnx.TensorProto.FLOAT, [1, 2])
    weight = numpy_helper.from_array(np.ones((1, 2), dtype=np.float32), "weight")
    bias = numpy_helper.from_array(np.array([5e6], dtype=np.float32), "bias")
    last = helper.make_node("Gemm", ["states", "weight", "bias"], ["logits"], transB=1)
    model = helper.make_model(helper.make_graph([last], "graph", [given], [output], [weight, bias]))
    fit_half_range(model)
    assert numpy_helper.to_array(model.graph.initializer[1]) == 5e6


def test_a_mobilebert_that_reads_its_padding_is_refused_with_the_reason(
    task: Task, tmp_path: Path
) -> None:
    model = tiny_classifier("mobilebert")
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = -0.25
    source = save_artifact(model, task, tmp_path / "source")
    with pytest.raises(
        ModelError, match=r"padding \(token 0\) has numbers up to 0\.25.*finetune --"
    ):
        export(source, task, ExportConfig(), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()


@pytest.mark.one_path
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("bert", {}),
        ("distilbert", {}),
        ("bertender-bilstm", {"texts": 2}),
        ("bertender-static", {"texts": 2}),
    ],
    ids=["bert", "distilbert", "bilstm", "static"],
)
def test_pairs(model_type: str, changes: dict[str, Any], tmp_path: Path) -> None:
    task = pair_task()
    source = save_artifact(tiny_classifier(model_type, **changes), task, tmp_path / "source")
    artifact = export(source, task, ExportConfig(), tmp_path / "onnx")
    classifier = open_classifier(artifact)
    tokens = classifier.encode(task.dev.examples[:3])
    assert set(tokens.arrays) == set(classifier.predictor.inputs)
    if model_type == "bert":
        assert set(np.unique(tokens.arrays["token_type_ids"])) == {0, 1}
    np.testing.assert_allclose(
        classifier.logits(task.dev.examples),
        open_classifier(source).logits(task.dev.examples),
        atol=1e-5,
    )


@pytest.mark.one_path
@pytest.mark.parametrize("opset", [14, 18, 20])
def test_the_opset_is_the_one_asked_for(
    opset: int, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    artifact = export(teacher, task, ExportConfig(opset=opset), tmp_path / "onnx")
    assert [entry.version for entry in onnx.load(onnx_file(artifact)).opset_import] == [opset]
    assert artifact.card.findings.graph.opset == opset


@pytest.mark.parametrize("opset", [13, 21])
def test_other_opsets_are_refused(opset: int) -> None:
    with pytest.raises(ConfigError, match=f"opset={opset}: .*(greater|less) than or equal to"):
        ExportConfig.parse({"opset": opset})


def scale_a_weight(model: onnx.ModelProto) -> None:
    weight = next(item for item in model.graph.initializer if len(item.dims) == 2)
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.05, weight.name))


def drop_the_mask(model: onnx.ModelProto) -> None:
    """Read ones where the attention mask was read."""
    graph = model.graph
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[place] = "all_ones"
    one = helper.make_tensor("one", onnx.TensorProto.INT64, [1], [1])
    graph.node.insert(0, helper.make_node("ConstantOfShape", ["shape"], ["all_ones"], value=one))
    graph.node.insert(0, helper.make_node("Shape", ["attention_mask"], ["shape"]))


def swap_the_labels(model: onnx.ModelProto) -> None:
    for name in ("classifier.weight", "classifier.bias"):
        tensor = next(item for item in model.graph.initializer if item.name == name)
        flipped = np.flip(numpy_helper.to_array(tensor), axis=0).copy()
        tensor.CopyFrom(numpy_helper.from_array(flipped, name))


def answer_with_nothing(model: onnx.ModelProto) -> None:
    bias = next(item for item in model.graph.initializer if item.name == "classifier.bias")
    bias.CopyFrom(numpy_helper.from_array(np.full(tuple(bias.dims), np.nan, "float32"), bias.name))


def fix_an_axis(axis: int, size: int) -> Callable[[onnx.ModelProto], None]:
    """Let the graph take one size of an axis, as if it had been traced so."""

    def fix(model: onnx.ModelProto) -> None:
        for entry in model.graph.input:
            entry.type.tensor_type.shape.dim[axis].dim_value = size

    return fix


DAMAGES: dict[str, Callable[[onnx.ModelProto], None]] = {
    "a weight scaled by 1.05": scale_a_weight,
    "the mask dropped": drop_the_mask,
    "labels swapped": swap_the_labels,
    "one text at a time": fix_an_axis(0, 1),
    "one length": fix_an_axis(1, 16),
    "not a number": answer_with_nothing,
}


def damage(monkeypatch: pytest.MonkeyPatch, change: Callable[[onnx.ModelProto], None]) -> None:
    write = onnx_export.write_onnx

    def write_damaged(*given: Any) -> Findings:
        findings = write(*given)
        directory = given[-1]
        model = onnx.load(directory / "model.onnx")
        change(model)
        onnx.save(model, directory / "model.onnx")
        return findings

    monkeypatch.setattr(onnx_export, "write_onnx", write_damaged)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_graph_that_answers_otherwise_is_refused_and_gone(
    name: str, teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(monkeypatch, DAMAGES[name])
    with pytest.raises(ParityError, match="onnx does not agree with teacher"):
        export(teacher, task, ExportConfig(), tmp_path / "onnx")
    assert not any(tmp_path.iterdir())


def test_a_refused_graph_leaves_the_old_artifact(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = export(teacher, task, ExportConfig(), tmp_path / "onnx")
    damage(monkeypatch, scale_a_weight)
    with pytest.raises(ParityError):
        export(teacher, task, ExportConfig(), tmp_path / "onnx")
    assert Artifact.load(tmp_path / "onnx").digest == old.digest


def test_the_number_of_texts_and_their_draw_are_settings(
    teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    artifact = export(teacher, task, ExportConfig(parity_texts=5, seed=3), tmp_path / "onnx")
    assert artifact.card.findings.parity.texts == 5 + 2 * EDGE_TEXTS
    assert artifact.card.seed == 3


def test_an_onnx_artifact_is_no_source(teacher: Artifact, task: Task, tmp_path: Path) -> None:
    once = export(teacher, task, ExportConfig(), tmp_path / "onnx")
    with pytest.raises(ModelError, match=r"kind 'onnx' \(stage 'export'\); only torch"):
        export(once, task, ExportConfig(), tmp_path / "twice")


def test_heads_are_counted_where_a_shape_leaves_them_open() -> None:
    """As in graphs that transformers 5 writes; what is computed stays."""
    head = {"batch": 2, "seq": 3, "open": -1, "size": 4}
    constants = [
        helper.make_node(
            "Constant", [], [name], value=numpy_helper.from_array(np.array([number]), name)
        )
        for name, number in head.items()
    ]
    nodes = [
        *constants,
        helper.make_node("Add", ["states", "bias"], ["moved"]),
        helper.make_node("Concat", [*head], ["shape"], axis=0),
        helper.make_node("Reshape", ["moved", "shape"], ["heads"], "split"),
    ]
    states = helper.make_tensor_value_info("states", onnx.TensorProto.FLOAT, [2, 3, 8])
    output = helper.make_tensor_value_info("heads", onnx.TensorProto.FLOAT, None)
    bias = numpy_helper.from_array(np.ones(8, dtype=np.float32), "bias")
    graph = helper.make_graph(nodes, "graph", [states], [output], [bias])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    count_heads(model)
    (counted,) = (each for each in model.graph.initializer if each.name == "split/heads")
    assert numpy_helper.to_array(counted).tolist() == [2]
    concat = next(node for node in model.graph.node if node.op_type == "Concat")
    assert [*concat.input] == ["batch", "seq", "split/heads", "size"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    given = np.arange(48, dtype=np.float32).reshape(2, 3, 8)
    (heads,) = session.run(None, {"states": given})
    np.testing.assert_array_equal(heads, (given + 1).reshape(2, 3, 2, 4))


def test_an_architecture_without_an_export_is_refused(task: Task, tmp_path: Path) -> None:
    shape = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32}
    model = tiny_classifier("fnet", **shape)
    source = save_artifact(model, task, tmp_path / "source")
    with pytest.raises(ModelError, match=r"'fnet' model cannot be exported.*Start from an encoder"):
        export(source, task, ExportConfig(), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
    expected = expected_on_disk(source.path)
    assert expected
    with pytest.raises(ModelError, match="'fnet' model cannot be exported"):
        check_architecture(expected.model, ExportConfig())  # before it is trained, say


def test_a_full_disk_is_not_the_architecture_s_fault(
    teacher: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(ENOSPC, "No space left on device"))
    monkeypatch.setattr(torch.onnx, "export", full)
    with pytest.raises(OSError, match="No space left"):
        export(teacher, task, ExportConfig(), tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()
