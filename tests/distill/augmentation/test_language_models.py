"""Which masked language model proposes words: the named one, or an origin of the teacher."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import HubUnreachableError, ModelError
from bertender.tasks.task import Task
from distill.augmentation.words import find_language_model, load_language_model
from tests.distill.augmentation.language_models import (
    language_model_artifact,
    save_language_model,
    teacher_from,
)
from tests.toy_models import save_encoder


def test_the_artifact_that_a_teacher_was_made_from_is_found(task: Task, tmp_path: Path) -> None:
    """Behind a classifier too, and not by the folder that a config names."""
    origin = language_model_artifact(tmp_path / "encoder")
    first = teacher_from(origin.path, task, tmp_path / "first")
    second = teacher_from(first.path, task, tmp_path / "second")
    for teacher in (first, second):
        found = find_language_model(teacher, None)
        assert found is not None and Path(found.source).resolve() == origin.path.resolve()
    assert not found.model.training


def test_the_encoder_that_a_teacher_was_made_from_is_found_by_its_name(
    task: Task, tmp_path: Path
) -> None:
    with_head = save_language_model(tmp_path / "with-head")
    without = save_encoder("bert", tmp_path / "without")
    found = find_language_model(teacher_from(with_head, task, tmp_path / "a"), None)
    assert found is not None and found.source == str(with_head)
    teacher = teacher_from(without, task, tmp_path / "b")
    assert find_language_model(teacher, None) is None
    named = find_language_model(teacher, str(with_head))
    assert named is not None and named.digest == found.digest


def test_an_origin_that_is_gone_is_none(task: Task, tmp_path: Path) -> None:
    origin = language_model_artifact(tmp_path / "encoder")
    teacher = teacher_from(origin.path, task, tmp_path / "teacher")
    origin.path.rename(tmp_path / "elsewhere")
    assert find_language_model(teacher, None) is None


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("encoder", ModelError, "no head that predicts words"),
        ("empty", ModelError, "has no config.json.*--augmentation-model"),
        ("nowhere", HubUnreachableError, "--augmentation-model"),
    ],
)
def test_a_named_model_must_have_a_head(
    name: str, error: type[Exception], message: str, teacher: Artifact, tmp_path: Path
) -> None:
    save_encoder("bert", tmp_path / "encoder")
    (tmp_path / "empty").mkdir()
    with pytest.raises(error, match=message):
        find_language_model(teacher, str(tmp_path / name))


def test_the_head_counts_in_the_digest(tmp_path: Path) -> None:
    first = load_language_model(str(save_language_model(tmp_path / "first")))
    same = load_language_model(str(save_language_model(tmp_path / "same")))
    with torch.no_grad():
        assert first.digest == same.digest
        same.model.get_output_embeddings().bias[0] += 1
    assert first.digest != same.digest
