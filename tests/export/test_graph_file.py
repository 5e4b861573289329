"""Graphs with their weights in a file beside them: written, opened, quantized and served alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DamagedArtifactError
from bertender.core.graph_file import save_graph, weights_size_bytes
from bertender.core.onnx_predictor import ONNX_DATA_NAME, ONNX_NAME
from bertender.core.predictor import Classifier, onnx_file, open_classifier
from bertender.measure.size import measure_size
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export
from quantize import qdq
from quantize.quantizer import quantize
from quantize.schemes import SCHEMES
from serve.config import ServeConfig
from serve.repository import write_repository
from tests.quantize.jobs import config_of

WEIGHTS = np.arange(512, dtype=np.float32).reshape(2, 256)


def tiny_graph() -> onnx.ModelProto:
    """A product with a matrix of 2048 bytes, and a sum with a number."""
    tensors = [
        numpy_helper.from_array(WEIGHTS, "weights"),
        numpy_helper.from_array(np.float32(3), "number"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["product"]),
        helper.make_node("Add", ["product", "number"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 2])
    wanted = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 256])
    return helper.make_model(helper.make_graph(nodes, "graph", [given], [wanted], tensors))


def test_large_weights_lie_beside_the_graph_and_small_ones_in_it(tmp_path: Path) -> None:
    path = tmp_path / ONNX_NAME
    assert weights_size_bytes(tiny_graph()) == pytest.approx(2052, abs=64)
    save_graph(tiny_graph(), path, external_above_mb=0)
    assert (tmp_path / ONNX_DATA_NAME).stat().st_size == WEIGHTS.nbytes
    assert (tmp_path / ONNX_DATA_NAME).stat().st_mode == path.stat().st_mode
    written = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    assert np.array_equal(numpy_helper.to_array(written["weights"]), WEIGHTS)
    without = onnx.load(path, load_external_data=False).graph.initializer
    assert [bool(tensor.external_data) for tensor in without] == [True, False]


def test_what_lay_beside_an_earlier_graph_is_gone(tmp_path: Path) -> None:
    path = tmp_path / ONNX_NAME
    for _ in range(2):
        save_graph(tiny_graph(), path, external_above_mb=0)
        assert (tmp_path / ONNX_DATA_NAME).stat().st_size == WEIGHTS.nbytes
    save_graph(onnx.load(path), path, external_above_mb=1)
    assert [file.name for file in tmp_path.iterdir()] == [ONNX_NAME]
    assert np.array_equal(numpy_helper.to_array(onnx.load(path).graph.initializer[0]), WEIGHTS)


@pytest.fixture(scope="module")
def plain(teacher: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export(teacher, task, ExportConfig(), tmp_path_factory.mktemp("plain") / "onnx")


@pytest.fixture(scope="module")
def parted(teacher: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    out = tmp_path_factory.mktemp("parted") / "onnx"
    return export(teacher, task, ExportConfig(external_above_mb=0), out)


def answers(artifact: Artifact, task: Task) -> np.ndarray:
    classifier: Classifier = open_classifier(artifact)
    return classifier.logits(task.dev.examples)


def test_an_artifact_lists_both_files_and_answers_the_same(
    plain: Artifact, parted: Artifact, task: Task
) -> None:
    assert ONNX_DATA_NAME not in plain.card.files
    data = parted.card.files[ONNX_DATA_NAME]
    assert data.size_bytes > 0.8 * plain.card.files[ONNX_NAME].size_bytes - 50_000
    assert np.array_equal(answers(plain, task), answers(parted, task))
    sizes = [measure_size(artifact, 0).model_size_bytes for artifact in (plain, parted)]
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)


def test_damage_to_the_weights_is_found(parted: Artifact, tmp_path: Path) -> None:
    for name in ("artifact.json", *parted.card.files):
        (tmp_path / name).write_bytes((parted.path / name).read_bytes())
    (tmp_path / ONNX_DATA_NAME).write_bytes(b"else")
    with pytest.raises(DamagedArtifactError, match=f"{ONNX_DATA_NAME} differs"):
        Artifact.load(tmp_path)


@pytest.mark.parametrize("scheme", [name for name, row in SCHEMES.items() if row.source == "onnx"])
def test_a_quantized_model_has_no_weights_of_its_source(
    scheme: str,
    plain: Artifact,
    parted: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = quantize(plain, task, config_of(scheme), tmp_path / "one")
    monkeypatch.setattr(qdq, "MOST_MB", 0)  # what is written on the way lies in two files, too
    two = quantize(parted, task, config_of(scheme), tmp_path / "two")
    assert ONNX_DATA_NAME not in two.card.files
    assert np.array_equal(answers(one, task), answers(two, task))


def test_a_model_repository_holds_both_files(parted: Artifact, tmp_path: Path, task: Task) -> None:
    repository = write_repository(parted, tmp_path / "models", ServeConfig())
    (graph,) = repository.rglob(ONNX_NAME)
    copied = Artifact.load(graph.parent)
    assert copied.digest == parted.digest
    assert np.array_equal(answers(copied, task), answers(parted, task))


def test_more_than_protobuf_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"external_above_mb=2048: .*less than or equal to 2000"):
        ExportConfig.parse({"external_above_mb": 2048})


def test_a_graph_of_two_files_is_loaded_whole(parted: Artifact) -> None:
    weights = onnx.load(onnx_file(parted)).graph.initializer
    assert all(tensor.raw_data or tensor.dims == [0] for tensor in weights)
