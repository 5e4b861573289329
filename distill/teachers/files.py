"""A teacher that is a file: its outputs are read, and no model runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch
from transformers import PretrainedConfig, PreTrainedModel

from bertender.tasks.task import Task
from bertender.tasks.teacher_files import TeacherFile
from bertender.text.batch import Example
from bertender.training.config import JudgedConfig


class NoModelConfig(PretrainedConfig):
    """The config of a teacher without a model: no layers, no width."""

    model_type = "bertender-no-model"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"num_hidden_layers": 0, "hidden_size": 0, **settings})


class NoModel(PreTrainedModel):
    """A teacher without a model: it has labels, and all its outputs are cached."""

    config_class = NoModelConfig

    def forward(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise: what is not cached cannot be computed."""
        raise NotImplementedError("a teacher's file has no model to run")


@dataclass(frozen=True)
class FileTeacher:
    """A file that a student learns from, as a teacher."""

    file: TeacherFile
    model: PreTrainedModel
    """Without layers: it never runs."""
    head: ClassVar[None] = None

    @classmethod
    def of(cls, file: TeacherFile) -> FileTeacher:
        """Return a file as a teacher."""
        return cls(file, NoModel(NoModelConfig(num_labels=len(file.labels))))

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def digest(self) -> str:
        return self.file.digest

    def task_of(self, task: Task, *, labelled: bool = True) -> Task:
        """Return the task of what it labels: the whole."""
        return task

    def check_varied(self, task: Task, config: JudgedConfig) -> None:
        """Do nothing: its rows were checked when they were read."""

    def logits(self, examples: tuple[Example, ...]) -> torch.Tensor:
        """Return its logits (texts, labels) on texts of the file.

        Raises:
            DataError: the file lacks some.
        """
        found = self.file.kind.logits(self.file.of_texts(examples))
        return torch.from_numpy(found).float()

    def weights(self, examples: tuple[Example, ...]) -> torch.Tensor | None:
        """Return by how much texts count, (texts,); None where all count alike."""
        if self.file.weights_by_text is None:
            return None
        return torch.from_numpy(self.file.weights_by_text[self.file.numbers(examples)]).float()
