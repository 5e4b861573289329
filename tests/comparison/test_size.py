"""Sizes come from the card: weights alone, and everything that is deployed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.comparison.records import Size, measure_size
from bertender.core.artifact import Artifact
from bertender.core.card import MODEL_SUFFIXES
from bertender.tasks.task import Task
from serve.page import ancestor_of
from tests.toys import new_toy


@pytest.mark.parametrize("suffix", MODEL_SUFFIXES)
def test_model_bytes_are_those_of_weight_files(tmp_path: Path, task: Task, suffix: str) -> None:
    with new_toy(
        tmp_path / "out", kind="onnx", family="bert", task=task.record(), stage="export"
    ) as draft:
        (draft.directory / f"model{suffix}").write_bytes(b"x" * 100)
        (draft.directory / "tokenizer.json").write_bytes(b"y" * 30)
    artifact = Artifact.load(tmp_path / "out")
    size = measure_size(artifact, parameters=25)
    assert size == Size(parameters=25, model_size_bytes=100, artifact_size_bytes=130)
    assert ancestor_of(artifact).model_mb == 100 / 1e6, "on the page of a server, too"


def test_a_real_artifact_is_its_files(teacher: Artifact) -> None:
    size = measure_size(teacher, teacher.card.findings.parameters)
    on_disk = sum(file.stat().st_size for file in teacher.path.iterdir())
    card = (teacher.path / "artifact.json").stat().st_size
    assert size.artifact_size_bytes == on_disk - card
    assert size.model_size_bytes == (teacher.path / "model.safetensors").stat().st_size
    assert size.model_size_bytes >= 4 * size.parameters
