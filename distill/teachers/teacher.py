"""Teachers: trained classifiers that a student learns from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError
from bertender.models.classifier import load_torch_classifier
from bertender.models.importing import open_artifact
from bertender.tasks.task import Task


def check_same_labels(teacher: Artifact, task: Task) -> None:
    """Check that a teacher predicts this task's labels in this order.

    Raises:
        ModelError: the artifact is not a torch classifier.
        ConfigError: it is one for other labels, or of another problem type.
    """
    if teacher.card.kind != "torch" or not teacher.card.task.labels:
        raise ModelError(
            f"{teacher.path} (kind {teacher.card.kind}, stage {teacher.card.stage}) is not a "
            "trained classifier. Give one, such as the artifact of `bertender finetune`."
        )
    if teacher.card.task.problem_type != task.problem_type:
        raise ConfigError(
            f"the teacher {teacher.path} was made for {teacher.card.task.problem_type!r}, and task "
            f"{task.name!r} is one of {task.problem_type!r}. Give one that was fine-tuned on this "
            "task."
        )
    if teacher.card.task.labels != task.labels:
        raise ConfigError(
            f"the teacher {teacher.path} predicts {', '.join(teacher.card.task.labels)} (task "
            f"{teacher.card.task.name!r}), and the labels of task {task.name!r} are "
            f"{', '.join(task.labels)}. Give one that was fine-tuned on this task."
        )


@dataclass(frozen=True)
class Teacher:
    """An artifact to learn from, with its model loaded."""

    artifact: Artifact
    model: PreTrainedModel

    @classmethod
    def load(cls, artifact: Artifact, task: Task) -> Self:
        """Load a classifier of the task's labels, or raise what `check_same_labels` does."""
        check_same_labels(artifact, task)
        return cls(artifact, on_device(load_torch_classifier(artifact)))


def load_teachers(first: Artifact, more: Sequence[Path], task: Task) -> tuple[Teacher, ...]:
    """Load the teacher, and those whose logits are averaged with its own.

    Raises:
        ConfigError: one predicts other labels.
        ModelError, NotAnArtifactError, DamagedArtifactError: one is not a classifier to learn from.
    """
    artifacts = (first, *(open_artifact(path) for path in more))
    return tuple(Teacher.load(artifact, task) for artifact in artifacts)


def on_device(model: PreTrainedModel) -> PreTrainedModel:
    """Move a model to where it runs fastest."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device)  # type: ignore[arg-type]  # its decorator hides the signature
    return model
