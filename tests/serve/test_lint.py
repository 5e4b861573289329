"""`bertender lint-repository`: nothing in sound repositories, and each fault by file and field."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import set_external_data
from tritonclient.grpc import model_config_pb2 as triton

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from serve.config import SERVED_RUNTIMES, ServeCommandConfig
from serve.repository.config_pbtxt import read_model_config, write_model_config
from serve.repository.lint import LINT_RULES, check_repository, lint_repository
from serve.repository.reading import Finding
from serve.repository.write import write_repository
from tests.serve.foreign import add_node, change_graph, write_foreign, write_linear

OURS, ENCODER = "classifier/config.pbtxt", "classifier-encoder/config.pbtxt"
LINEAR, GRAPH = "linear/config.pbtxt", "linear/1/model.onnx"


@contextmanager
def changed(config: Path) -> Iterator[Any]:
    """Change a configuration in place."""
    message = read_model_config(config)
    yield message
    write_model_config(config, message)


@dataclass(frozen=True)
class Planted:
    """A fault in a sound repository, and what is found."""

    rule: str
    plant: Callable[[Path], None]
    file: str
    field: str
    value: str
    allowed: str
    also: tuple[str, ...] = ()
    """Other rules that the same change breaks."""


def edit(file: str, change: Callable[[Any], object]) -> Callable[[Path], None]:
    def plant(repository: Path) -> None:
        with changed(repository / file) as config:
            change(config)

    return plant


def write(file: str, text: str) -> Callable[[Path], None]:
    return lambda repository: void((repository / file).write_text(text))


def void(_: object) -> None:
    return None


def remove_folder(name: str) -> Callable[[Path], None]:
    return lambda repository: shutil.rmtree(repository / name)


def weights_apart(repository: Path) -> None:
    graph = repository / GRAPH
    model = onnx.load(graph)
    set_external_data(model.graph.initializer[0], "model.onnx_data")
    onnx.save(model, graph)
    (graph.parent / "model.onnx_data").unlink()


def on_a_gpu(operator: str) -> Callable[[Path], None]:
    def plant(repository: Path) -> None:
        add_node(repository / GRAPH, operator)
        with changed(repository / LINEAR) as config:
            config.instance_group[0].kind = triton.ModelInstanceGroup.KIND_GPU

    return plant


def an_output_of_three(repository: Path) -> None:
    change_graph(repository / GRAPH, "hidden", ["batch", "width"])
    with changed(repository / LINEAR) as config:
        config.output.add(name="hidden", data_type=triton.TYPE_FP32, dims=[3])


def float16(repository: Path) -> None:
    write_linear(repository / GRAPH, np.float16)
    with changed(repository / LINEAR) as config:
        config.input[0].data_type = config.output[0].data_type = triton.TYPE_FP16
        config.model_warmup[0].inputs["x"].data_type = triton.TYPE_FP16


def more_labels(repository: Path) -> None:
    """Give the artifact a third label; its digests are of other files."""
    card = repository / "classifier-encoder" / "1" / "artifact.json"
    values = json.loads(card.read_text())
    values["task"]["labels"].append("vegetable")
    card.write_text(json.dumps(values))


def parameter(name: str, value: str) -> Callable[[Any], object]:
    return lambda config: config.parameters[name].MergeFrom(
        triton.ModelParameter(string_value=value)
    )


FOREIGN: Mapping[str, Planted] = {
    "another name": Planted(
        "name",
        edit(LINEAR, lambda c: setattr(c, "name", "lienar")),
        LINEAR,
        "name",
        "'lienar'",
        "'linear'",
    ),
    "no version": Planted(
        "versions",
        lambda r: void((r / "linear/1").rename(r / "linear/latest")),
        "linear",
        "",
        "folders ['latest']",
        "such as 1",
    ),
    "a version of the policy": Planted(
        "versions",
        edit(LINEAR, lambda c: c.version_policy.specific.versions.append(3)),
        LINEAR,
        "version_policy.specific.versions",
        "3",
        "one of [1]",
    ),
    "no file": Planted(
        "model-file",
        lambda r: (r / GRAPH).unlink(),
        GRAPH,
        "",
        "missing",
        "what the backend 'onnxruntime' reads",
    ),
    "a misspelt backend": Planted(
        "backend",
        edit(LINEAR, lambda c: setattr(c, "backend", "onnxruntim")),
        LINEAR,
        "backend",
        "'onnxruntim'",
        "Did you mean 'onnxruntime'?",
        also=("model-file",),
    ),
    "a negative count": Planted(
        "instance-group",
        edit(LINEAR, lambda c: setattr(c.instance_group[0], "count", -1)),
        LINEAR,
        "instance_group[0].count",
        "-1",
        "1 or more",
    ),
    "GPUs of the CPU": Planted(
        "instance-group",
        edit(LINEAR, lambda c: c.instance_group[0].gpus.append(0)),
        LINEAR,
        "instance_group[0].gpus",
        "[0]",
        "none with KIND_CPU",
    ),
    "not a graph": Planted(
        "graph",
        write(GRAPH, "version https://git-lfs.github.com/spec/v1"),
        GRAPH,
        "",
        "is no graph of ONNX",
        "a graph of ONNX",
    ),
    "weights that are elsewhere": Planted(
        "weight-file",
        weights_apart,
        GRAPH,
        "external_data",
        "model.onnx_data is missing",
        "next to the graph",
    ),
    "a tensor that the graph does not have": Planted(
        "tensor-name",
        edit(LINEAR, lambda c: setattr(c.output[0], "name", "z")),
        LINEAR,
        "output[0].name",
        "'z'",
        "model.onnx: y",
        also=("called-tensor", "unused-output"),
    ),
    "an input that nobody gives": Planted(
        "tensor-name",
        edit(LINEAR, lambda c: setattr(c.input[0], "name", "ids")),
        LINEAR,
        "input",
        "'x' is missing",
        "every input of the graph",
        also=("called-tensor", "warm-up", "tensor-name"),
    ),
    "an output that nobody asks for": Planted(
        "unused-output",
        lambda r: change_graph(r / GRAPH, "hidden", ["batch", 3]),
        LINEAR,
        "output",
        "'hidden' of the graph is missing",
        "no request gets this one",
    ),
    "another type": Planted(
        "tensor-type",
        edit(LINEAR, lambda c: setattr(c.output[0], "data_type", triton.TYPE_FP16)),
        LINEAR,
        "output[0].data_type",
        "TYPE_FP16",
        "TYPE_FP32",
    ),
    "another rank": Planted(
        "tensor-shape",
        edit(LINEAR, lambda c: c.output[0].dims.append(1)),
        LINEAR,
        "output[0].dims",
        "[2, 1]",
        "[2]",
    ),
    "another size": Planted(
        "tensor-shape",
        edit(LINEAR, lambda c: c.output[0].dims.__setitem__(0, 3)),
        LINEAR,
        "output[0].dims",
        "[3]",
        "[2]",
    ),
    "any size of a fixed dimension": Planted(
        "tensor-shape",
        edit(LINEAR, lambda c: c.output[0].dims.__setitem__(0, -1)),
        LINEAR,
        "output[0].dims",
        "[-1]",
        "[2]",
    ),
    "another size behind a reshape": Planted(
        "tensor-shape",
        edit(LINEAR, lambda c: c.output[0].reshape.shape.extend([1, 2])),
        LINEAR,
        "output[0].dims",
        "[1, 2]",
        "[2]",
    ),
    "a size of an output that the graph leaves open": Planted(
        "tensor-shape",
        an_output_of_three,
        LINEAR,
        "output[1].dims",
        "[3]",
        "[-1]",
    ),
    "instances of an ensemble": Planted(
        "instance-group",
        edit("pipeline/config.pbtxt", lambda c: c.instance_group.add(count=2)),
        "pipeline/config.pbtxt",
        "instance_group",
        "1 of an ensemble",
        "none",
    ),
    "batches of a fixed size": Planted(
        "batch-dimension",
        lambda r: write_linear(r / GRAPH, batch=1),
        LINEAR,
        "max_batch_size",
        "8, and in the graph x is [1, 4], y is [1, 2]",
        "first dimensions are dynamic",
    ),
    "a batch below nothing": Planted(
        "batch-dimension",
        edit(LINEAR, lambda c: setattr(c, "max_batch_size", -1)),
        LINEAR,
        "max_batch_size",
        "-1",
        "0 or more",
        also=("tensor-shape",),
    ),
    "a sample of another shape": Planted(
        "warm-up",
        edit(LINEAR, lambda c: c.model_warmup[0].inputs["x"].dims.append(7)),
        LINEAR,
        'model_warmup[0].inputs["x"]',
        "TYPE_FP32 [4, 7]",
        "TYPE_FP32 [4]",
    ),
    "a sample of another input": Planted(
        "warm-up",
        edit(LINEAR, lambda c: c.model_warmup[0].inputs["z"].dims.append(7)),
        LINEAR,
        "model_warmup[0]",
        "inputs x, z",
        "those of the model: x",
    ),
    "an unknown parameter of the backend": Planted(
        "backend-parameter",
        edit(LINEAR, parameter("intra_op_thread_cuont", "2")),
        LINEAR,
        'parameters["intra_op_thread_cuont"]',
        "unknown to the backend onnxruntime",
        "Did you mean 'intra_op_thread_count'?",
    ),
    "a step of no model": Planted(
        "called-model",
        remove_folder("linear"),
        "pipeline/config.pbtxt",
        "ensemble_scheduling.step[0]",
        "'linear'",
        "a model of the repository: pipeline",
    ),
    "a step with another input": Planted(
        "called-tensor",
        edit(
            "pipeline/config.pbtxt",
            lambda c: c.ensemble_scheduling.step[0].input_map.update({"z": "IN"}),
        ),
        "pipeline/config.pbtxt",
        "ensemble_scheduling.step[0]",
        "the inputs x, z",
        "its inputs: x",
    ),
    "8 bits on a GPU": Planted(
        "integers-on-gpu",
        on_a_gpu("DynamicQuantizeLinear"),
        LINEAR,
        "instance_group",
        "KIND_GPU, for a graph with DynamicQuantizeLinear",
        "QuantizeLinear, DequantizeLinear and",
    ),
    "float16 on the CPU": Planted(
        "float16-on-cpu",
        float16,
        LINEAR,
        "instance_group",
        "KIND_CPU, for a graph of float16",
        "KIND_GPU, or a graph of float32",
    ),
    "an unknown field": Planted(
        "syntax",
        write(LINEAR, 'name: "linear"\nmax_batchsize: 8\n'),
        LINEAR,
        "line 2",
        'no field named "max_batchsize"',
        "Triton's model_config.proto",
    ),
    "no configuration": Planted(
        "no-config",
        lambda r: (r / LINEAR).unlink(),
        LINEAR,
        "",
        "missing",
        "Triton completes what it can",
    ),
}

OWN: Mapping[str, Planted] = {
    "a misspelt parameter": Planted(
        "parameter",
        edit(OURS, parameter("tokens_per_buckets", "9")),
        OURS,
        'parameters["tokens_per_buckets"]',
        "unknown",
        "Did you mean 'tokens_per_bucket'?",
    ),
    "a value of another type": Planted(
        "parameter",
        edit(OURS, parameter("threads", "two")),
        OURS,
        'parameters["threads"]',
        "'two'",
        "valid integer",
    ),
    "an unknown runtime": Planted(
        "parameter",
        edit(OURS, parameter("runtime", "triton-onnxruntim")),
        OURS,
        "parameters",
        "Did you mean 'triton-onnxruntime'?",
        "a row of that table",
    ),
    "another encoder": Planted(
        "called-model",
        edit(OURS, parameter("encoder", "encoder")),
        OURS,
        'parameters["encoder"]',
        "'encoder'",
        "classifier, classifier-encoder",
    ),
    "an input too few": Planted(
        "called-tensor",
        edit(OURS, parameter("encoder_inputs", "input_ids")),
        OURS,
        'parameters["encoder"]',
        "the inputs input_ids",
        "its inputs: attention_mask, input_ids, token_type_ids",
    ),
    "an encoder without logits": Planted(
        "called-tensor",
        edit(ENCODER, lambda c: setattr(c.output[0], "name", "hidden")),
        OURS,
        'parameters["encoder"]',
        "asks classifier-encoder for logits",
        "its outputs: hidden",
        also=("tensor-name", "unused-output"),
    ),
    "an artifact that has changed": Planted(
        "artifact",
        write("classifier-encoder/1/tokenizer.json", "{}"),
        "classifier-encoder/1",
        "",
        "tokenizer.json differs from its recorded sha256",
        "the files that artifact.json names",
    ),
    "an artifact that is not there": Planted(
        "artifact",
        edit(OURS, parameter("artifact", "artifact")),
        "classifier/1/artifact",
        "",
        "there is no such directory",
        "the files that artifact.json names",
    ),
    "texts that are numbers": Planted(
        "own-tensor",
        edit(OURS, lambda c: setattr(c.input[0], "data_type", triton.TYPE_INT64)),
        OURS,
        "input[0].data_type",
        "TYPE_INT64",
        "TYPE_STRING",
    ),
    "texts in twos": Planted(
        "own-tensor",
        edit(OURS, lambda c: c.input[0].dims.__setitem__(0, 2)),
        OURS,
        "input[0].dims",
        "[2]",
        "[1]",
    ),
    "a second text that the model does not read": Planted(
        "own-tensor",
        edit(
            OURS,
            lambda c: c.input.add(name="TEXT_PAIR", data_type=triton.TYPE_STRING, dims=[1]),
        ),
        OURS,
        "input[1].name",
        "'TEXT_PAIR'",
        "one of TEXT",
    ),
    "scores that are labels": Planted(
        "own-tensor",
        edit(OURS, lambda c: setattr(c.output[1], "data_type", triton.TYPE_STRING)),
        OURS,
        "output[1].data_type",
        "TYPE_STRING",
        "TYPE_FP32",
    ),
    "no label": Planted(
        "own-tensor",
        edit(OURS, lambda c: c.output.__delitem__(0)),
        OURS,
        "output",
        "'LABEL' is missing",
        "LABEL, SCORE, LOGITS",
    ),
    "logits of words": Planted(
        "own-tensor",
        edit(OURS, lambda c: c.output[2].dims.insert(0, -1)),
        OURS,
        "output[2].dims",
        "[-1, 2]",
        "[2]",
    ),
    "no batches": Planted(
        "own-tensor",
        edit(OURS, lambda c: setattr(c, "max_batch_size", 0)),
        OURS,
        "max_batch_size",
        "0",
        "1 or more",
    ),
    "another number of labels": Planted(
        "labels",
        edit(OURS, lambda c: c.output[2].dims.__setitem__(0, 5)),
        OURS,
        "output[2].dims",
        "[5]",
        "2 at the end, the labels of the artifact",
    ),
    "more labels than logits": Planted(
        "labels",
        more_labels,
        "classifier-encoder/1/model.onnx",
        "logits",
        ", 2]",
        "3 at the end",
        also=("labels",),
    ),
}


@pytest.fixture(scope="module")
def ours(onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("ours") / "models"
    values = {"runtime": "triton-onnxruntime", "repository_only": directory}
    return write_repository(onnx_artifact, directory, ServeCommandConfig.parse(values))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_foreign(tmp_path_factory.mktemp("foreign"))


def check(sound: Path, planted: Planted, folder: Path) -> None:
    repository = folder / "copy"
    shutil.copytree(sound, repository)  # hard links would change the original, too
    planted.plant(repository)
    findings = lint_repository(repository)
    assert {each.rule for each in findings} <= {planted.rule, *planted.also}, findings
    (found,) = [each for each in findings if is_at(each, planted)]
    assert planted.value in found.value and planted.allowed in found.allowed, found
    severity = LINT_RULES[found.rule].severity if found.rule in LINT_RULES else None
    assert severity in (found.severity, None)


def is_at(found: Finding, planted: Planted) -> bool:
    return (found.rule, found.file, found.field) == (planted.rule, planted.file, planted.field)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_fault_in_a_foreign_repository_is_found(name: str, foreign: Path, tmp_path: Path) -> None:
    check(foreign, FOREIGN[name], tmp_path)


@pytest.mark.parametrize("name", OWN)
def test_a_fault_in_our_repository_is_found(name: str, ours: Path, tmp_path: Path) -> None:
    check(ours, OWN[name], tmp_path)


@pytest.mark.parametrize(
    ("name", "rule", "change"),
    [
        ("a device", "graph", lambda folder: link(folder / "1" / "model.onnx", "/dev/zero")),
        ("a long name", "model-file", lambda folder: rename(folder, "x" * 300)),
        ("a number of no data type", "tensor-type", lambda folder: set_type(folder, 99)),
    ],
)
def test_a_hostile_model_is_a_finding_and_hides_no_other(
    name: str, rule: str, change: Callable[[Path], None], foreign: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "models"
    shutil.copytree(foreign, repository)
    change(repository / "linear")
    found = {(each.file.split("/")[0], each.rule) for each in lint_repository(repository)}
    assert ("linear", rule) in found, name


def link(place: Path, target: str) -> None:
    place.unlink()
    place.symlink_to(target)


def rename(folder: Path, name: str) -> None:
    with changed(folder / "config.pbtxt") as config:
        config.default_model_filename = name


def set_type(folder: Path, number: int) -> None:
    text = (folder / "config.pbtxt").read_text()
    (folder / "config.pbtxt").write_text(text.replace("TYPE_FP32", str(number)))


def test_every_rule_is_broken_once() -> None:
    planted = {each.rule for each in (*FOREIGN.values(), *OWN.values())}
    in_process = {"unsuited-runtime"}  # the repositories above are of Triton's own backends
    assert planted | in_process == {*LINT_RULES, "syntax", "no-config"}


def test_sound_repositories_have_no_findings(
    ours: Path, foreign: Path, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    config = ServeCommandConfig.parse({"repository_only": tmp_path / "models"})
    in_process = write_repository(onnx_artifact, tmp_path / "models", config)
    for directory in (ours, foreign, in_process):
        assert lint_repository(directory) == ()


def test_a_text_is_what_triton_reads(foreign: Path, tmp_path: Path) -> None:
    """Weights among the inputs, as before version 4 of ONNX, are no inputs of a model."""
    shutil.copytree(foreign, tmp_path / "models")
    graph = tmp_path / "models" / GRAPH
    model = onnx.load(graph)
    model.graph.input.append(helper.make_tensor_value_info("w", 1, [4, 2]))
    onnx.save(model, graph)
    assert lint_repository(tmp_path / "models") == ()


def test_weights_may_be_next_to_the_graph(foreign: Path, tmp_path: Path) -> None:
    shutil.copytree(foreign, tmp_path / "models")
    graph = tmp_path / "models" / GRAPH
    model = onnx.load(graph)
    (weight,) = model.graph.initializer
    assert numpy_helper.to_array(weight).size == 8
    set_external_data(weight, "model.onnx_data")
    onnx.save(model, graph)
    assert (graph.parent / "model.onnx_data").is_file()
    assert lint_repository(tmp_path / "models") == ()


def test_what_is_no_repository_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    for directory in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ArtifactError, match="is no model repository"):
            lint_repository(directory)


def test_a_repository_with_an_error_is_not_written(onnx_artifact: Artifact, tmp_path: Path) -> None:
    shutil.copytree(onnx_artifact.path, tmp_path / "artifact")
    card = tmp_path / "artifact" / "artifact.json"
    values = json.loads(card.read_text())
    values["task"]["labels"].append("vegetable")
    card.write_text(json.dumps(values))
    artifact, out = Artifact.load(tmp_path / "artifact"), tmp_path / "models"
    for runtime in SERVED_RUNTIMES:
        config = ServeCommandConfig.parse({"runtime": runtime, "repository_only": out})
        with pytest.raises(ArtifactError, match=r"logits: \[.*, 2\]; allowed: 3 at the end"):
            write_repository(artifact, out, config)
    assert not out.exists()


def test_errors_alone_stop_a_repository(foreign: Path, tmp_path: Path) -> None:
    shutil.copytree(foreign, tmp_path / "models")
    FOREIGN["8 bits on a GPU"].plant(tmp_path / "models")
    check_repository(tmp_path / "models")
    FOREIGN["another type"].plant(tmp_path / "models")
    with pytest.raises(ArtifactError, match=r"output\[0\]\.data_type: TYPE_FP16; allowed"):
        check_repository(tmp_path / "models")


def test_of_our_backend_the_runtime_says_which_device_it_is(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    half = export(trained, task, ExportConfig(precision="float16"), tmp_path / "half")
    findings = {}
    for runtime in ("onnxruntime", "onnxruntime-cuda"):
        values = {"runtime": runtime, "repository_only": tmp_path / runtime}
        config = ServeCommandConfig.parse(values)
        findings[runtime] = lint_repository(write_repository(half, tmp_path / runtime, config))
    (warned,) = findings["onnxruntime"]
    assert (warned.rule, warned.field) == ("float16-on-cpu", 'parameters["runtime"]')
    assert "onnxruntime, for a graph" in warned.value and "onnxruntime-cuda, or" in warned.allowed
    assert not findings["onnxruntime-cuda"]


def test_a_repository_that_was_changed_to_a_gpu_has_an_error(
    trained: Artifact, task: Task, tmp_path: Path
) -> None:
    exported = export(trained, task, ExportConfig(), tmp_path / "float")
    small = quantize(exported, task, QuantizeConfig(scheme="dynamic"), tmp_path / "small")
    config = ServeCommandConfig.parse({"repository_only": tmp_path / "models"})
    write_repository(small, tmp_path / "models", config)
    with changed(tmp_path / "models" / OURS) as message:
        message.parameters["runtime"].string_value = "onnxruntime-cuda"
    (wrong,) = lint_repository(tmp_path / "models")
    assert (wrong.rule, wrong.field) == ("unsuited-runtime", 'parameters["runtime"]')
    assert wrong.severity == "error" and "onnxruntime or openvino or" in wrong.allowed
