"""Files that settings name: whether they are there, and a digest of what they hold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bertender.core.artifact import Artifact, sha256_of
from bertender.core.errors import DataError
from bertender.core.timing import TIMING_NAME
from bertender.tasks.registry import load_task
from bertender.tasks.task import TaskConfig
from distill.corpora.corpus import Corpus, open_corpus, survey
from distill.distillation.distiller import DistillConfig
from distill.distillation.general_config import GeneralConfig
from distill.finetuning.multitask import MultiTaskConfig
from distill.pretraining.config import PretrainConfig
from distill.pruning.config import OF_THE_TASK, PruneConfig
from distill.teachers.encoders import find_encoder

__all__ = [
    "ArtifactFolder",
    "CorpusText",
    "Encoder",
    "NamedFile",
    "TaskData",
    "TextFile",
    "encoder_files",
    "general_files",
    "needed_texts",
    "student_files",
    "teacher_files",
]


class NamedFile(Protocol):
    """Files that a setting names."""

    @property
    def path(self) -> Path | None:
        """Where it lies, if the name can be a path."""

    def check(self) -> None:
        """Raise a BertenderError where it is not there."""

    def digest(self) -> str:
        """Return a digest of what it holds; empty for what does not lie on this machine."""


@dataclass(frozen=True)
class Encoder:
    """An encoder's folder, packaged name or hub name."""

    setting: str
    name: str

    @property
    def path(self) -> Path:
        return Path(self.name)

    def check(self) -> None:
        find_encoder(self.name, setting=self.setting.replace("_", "-"))

    def digest(self) -> str:
        return _folder_digest(self.path)


@dataclass(frozen=True)
class ArtifactFolder:
    """An artifact."""

    path: Path

    def check(self) -> None:
        Artifact.load(self.path, verify=False)

    def digest(self) -> str:
        return _folder_digest(self.path)


@dataclass(frozen=True)
class TextFile:
    """A file of texts."""

    setting: str
    path: Path

    def check(self) -> None:
        if not self.path.is_file():
            raise DataError(
                f"{self.setting}={str(self.path)!r}: there is no such file. Give a path from here, "
                "or an absolute one."
            )

    def digest(self) -> str:
        return sha256_of(self.path) if self.path.is_file() else ""


@dataclass(frozen=True)
class CorpusText:
    """A corpus."""

    corpus: Corpus
    path: None = None

    def check(self) -> None:
        open_corpus(self.corpus.source, self.corpus.text_column)

    def digest(self) -> str:
        return survey(self.corpus).sha256


@dataclass(frozen=True)
class TaskData:
    """The data of a task by its name."""

    task: str
    path: None = None

    def check(self) -> None:
        self.digest()

    def digest(self) -> str:
        return load_task(TaskConfig(task=self.task)).fingerprint()


def teacher_files(config: MultiTaskConfig) -> Iterator[NamedFile]:
    """Yield what the settings of `finetune` name."""
    yield Encoder("teacher", config.teacher)
    yield from map(TaskData, config.more_tasks)


def general_files(config: GeneralConfig) -> Iterator[NamedFile]:
    """Yield what the settings of `distill-general` name."""
    yield Encoder("teacher", config.teacher)
    yield CorpusText(Corpus(config.corpus, config.text_column))


def student_files(config: DistillConfig) -> Iterator[NamedFile]:
    """Yield what the settings of `distill` name."""
    for setting in ("student", "augmentation_model"):
        if (name := getattr(config, setting)) is not None:
            yield Encoder(setting, name)
    yield from map(ArtifactFolder, config.more_teachers)
    if config.unlabelled is not None:
        yield TextFile("unlabelled", config.unlabelled)


def encoder_files(config: PretrainConfig) -> Iterator[NamedFile]:
    """Yield what the settings of `pretrain` name."""
    if config.stack_from is not None:
        yield ArtifactFolder(config.stack_from)
    yield CorpusText(Corpus(config.corpus, config.text_column))


def needed_texts(config: PruneConfig) -> Iterator[NamedFile]:
    """Yield the corpus that the vocabulary is pruned for, where it is one."""
    if config.vocab is not None and config.vocab != OF_THE_TASK:
        yield CorpusText(Corpus(config.vocab))


def _folder_digest(folder: Path) -> str:
    """Return a digest of a folder's files; empty where there are none.

    How long it took to make an artifact is no part of it.
    """
    digest = hashlib.sha256()
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != TIMING_NAME
    )
    for path in files:
        digest.update(f"{path.name} {sha256_of(path)}".encode())
    return digest.hexdigest() if files else ""
