"""Teacher files: a teacher whose outputs are read from a file, without a model."""

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
    """Config of a teacher without a model: no layers, no width."""

    model_type = "bertender-no-model"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"num_hidden_layers": 0, "hidden_size": 0, **settings})


class NoModel(PreTrainedModel):
    """Stand-in for the model of a teacher file, whose outputs are all cached."""

    config_class = NoModelConfig

    def forward(self, *arguments: Any, **named: Any) -> NoReturn:
        """Raise NotImplementedError: outputs that are not cached cannot be computed."""
        raise NotImplementedError("a teacher's file has no model to run")


@dataclass(frozen=True)
class FileTeacher:
    """A teacher file, with the interface of `Teacher`."""

    file: TeacherFile
    model: PreTrainedModel
    """Stand-in that never runs."""
    head: ClassVar[None] = None

    @classmethod
    def of(cls, file: TeacherFile) -> FileTeacher:
        """Return the teacher of a file."""
        return cls(file, NoModel(NoModelConfig(num_labels=len(file.labels))))

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def digest(self) -> str:
        return self.file.digest

    def task_of(self, task: Task, *, labelled: bool = True) -> Task:
        """Return `task`: a file labels all heads."""
        return task

    def check_varied(self, task: Task, config: JudgedConfig) -> None:
        """Do nothing: the rows were checked when they were read."""

    def logits(self, examples: tuple[Example, ...]) -> torch.Tensor:
        """Return the logits (texts, labels) on texts of the file.

        Raises:
            DataError: the file lacks some of the texts.
        """
        found = self.file.kind.logits(self.file.of_texts(examples))
        return torch.from_numpy(found).float()

    def weights(self, examples: tuple[Example, ...]) -> torch.Tensor | None:
        """Return the weights of texts (texts,); None for equal weights."""
        if self.file.weights_by_text is None:
            return None
        return torch.from_numpy(self.file.weights_by_text[self.file.numbers(examples)]).float()
