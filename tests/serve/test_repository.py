"""A model repository is whole or absent, and never takes the place of foreign work."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, DamagedArtifactError, ModelError
from serve.config import ServeConfig
from serve.repository import is_repository, write_repository
from serve.triton_config import model_config, read_model_config
from serve.wire import MODEL_NAME


def test_it_holds_config_code_and_a_verified_copy(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(max_batch_size=5)
    repository = write_repository(onnx_artifact, tmp_path / "new" / "models", config)
    model = repository / "classifier"
    assert read_model_config(model / "config.pbtxt") == model_config(
        onnx_artifact.card, config, onnx_artifact.digest
    )
    assert "serve.classifier_backend" in (model / "1" / "model.py").read_text()
    assert Artifact.load(model / "1" / "artifact").digest == onnx_artifact.digest
    assert is_repository(repository)
    assert [path.name for path in repository.parent.iterdir()] == ["models"]


def test_a_repository_is_replaced(onnx_artifact: Artifact, tmp_path: Path) -> None:
    for size in (5, 6):
        write_repository(onnx_artifact, tmp_path / "models", ServeConfig(max_batch_size=size))
    config = read_model_config(tmp_path / "models" / "classifier" / "config.pbtxt")
    assert config.max_batch_size == 6
    assert [path.name for path in tmp_path.iterdir()] == ["models"]


def test_a_foreign_directory_is_not_replaced(onnx_artifact: Artifact, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(ArtifactError, match="not a model repository of bertender"):
        write_repository(onnx_artifact, tmp_path, ServeConfig())
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_repository_with_a_model_of_someone_else_is_foreign(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    (repository / "resnet").mkdir()
    with pytest.raises(ArtifactError, match="Choose another directory"):
        write_repository(onnx_artifact, repository, ServeConfig())


def test_a_torch_artifact_is_sent_to_export(teacher: Artifact, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"`bertender export .*teacher`"):
        write_repository(teacher, tmp_path / "models", ServeConfig())
    assert not (tmp_path / "models").exists()


def test_a_language_model_is_refused(onnx_artifact: Artifact, tmp_path: Path) -> None:
    task = onnx_artifact.card.task.model_copy(update={"problem_type": "masked_language_model"})
    card = onnx_artifact.card.model_copy(update={"task": task})
    with pytest.raises(ModelError, match="masked_language_model"):
        write_repository(Artifact(onnx_artifact.path, card), tmp_path / "models", ServeConfig())


def test_a_damaged_artifact_leaves_the_old_repository(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    repository = write_repository(onnx_artifact, tmp_path / "models", ServeConfig())
    damaged = tmp_path / "damaged"
    shutil.copytree(onnx_artifact.path, damaged)
    (damaged / "model.onnx").write_bytes(b"half of it")
    with pytest.raises(DamagedArtifactError, match=r"model\.onnx differs"):
        write_repository(Artifact.load(damaged, verify=False), repository, ServeConfig())
    assert Artifact.load(repository / "classifier" / "1" / "artifact").digest


def test_every_setting_is_described() -> None:
    assert all(field.description for field in ServeConfig.model_fields.values())


@pytest.mark.parametrize("before", [False, True])
def test_a_full_disk_is_named_and_leaves_nothing_half_written(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    out = tmp_path / "models"
    if before:
        write_repository(onnx_artifact, out, ServeConfig(max_batch_size=3))
    copied = []

    def full(source: Path, target: Path) -> None:
        copied.append(target)
        if len(copied) > 2:
            target.write_bytes(b"hal")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(ArtifactError, match=r"models cannot be written: No space left .*MB"):
        write_repository(onnx_artifact, out, ServeConfig(max_batch_size=4))
    assert [path.name for path in tmp_path.iterdir()] == (["models"] if before else [])
    if before:
        config = read_model_config(out / MODEL_NAME / "config.pbtxt")
        assert is_repository(out) and config.max_batch_size == 3
