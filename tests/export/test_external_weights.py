"""Graphs with their weights in a file beside them: written, opened, quantized and served alike."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest

from bertender.comparison.records import measure_size
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, DamagedArtifactError
from bertender.models.classifier import Classifier, onnx_file, open_classifier
from bertender.models.onnx_session import MOST_MB, ONNX_DATA_NAME, ONNX_NAME
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export, write_onnx
from quantize import four_bit
from quantize import post_training as dynamic
from quantize import post_training as qdq
from quantize.config import SCHEMES
from quantize.quantizer import quantize
from serve.config import ServeConfig
from serve.repository import write_repository
from tests.quantize.contexts import config_of

GRAPH_FILES = (ONNX_NAME, ONNX_DATA_NAME)


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


@pytest.mark.one_path
@pytest.mark.parametrize("tables", ["no_embeddings", "embeddings"])
@pytest.mark.parametrize("scheme", sorted({*SCHEMES} - {"four-bit-embeddings"}))
def test_every_scheme_goes_by_graphs_of_two_files(
    scheme: str,
    tables: str,
    teacher: Artifact,
    plain: Artifact,
    parted: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those above 2 GB must: what is read, what is written on the way, and what comes out.

    Tables of 4 bits move these untrained models too far; the scheme's own tests have such a graph.
    """
    config = config_of(scheme, **({"no_embeddings": True} if tables == "no_embeddings" else {}))
    trains = SCHEMES[scheme].source == "torch"

    def quantized(source: Artifact, most_mb: int, name: str) -> Artifact:
        exporting = ExportConfig(external_above_mb=most_mb)
        write = partial(write_onnx, task=task, config=exporting)
        given = teacher if trains else source
        return quantize(
            given,
            task,
            config,
            tmp_path / name,
            write_onnx=lambda trained, directory: write(trained, directory=directory),
        )

    one = quantized(plain, MOST_MB, "one")
    for module in (dynamic, four_bit, qdq):
        monkeypatch.setattr(module, "MOST_MB", 0)
    two = quantized(parted, 0, "two")
    assert np.array_equal(answers(one, task), answers(two, task))
    weights = [
        sum(file.size_bytes for name, file in each.card.files.items() if name in GRAPH_FILES)
        for each in (one, two)
    ]
    assert weights[1] == pytest.approx(weights[0], rel=0.1), "and none of the source's"


@pytest.mark.parametrize("is_temporary", [False, True])
def test_a_model_repository_holds_both_files(
    parted: Artifact, tmp_path: Path, task: Task, is_temporary: bool
) -> None:
    """And leaves the artifact as it is: onnx reads no weights that have hard links."""
    repository = write_repository(
        parted, tmp_path / "models", ServeConfig(), is_temporary=is_temporary
    )
    onnx.load(onnx_file(parted))
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
