"""Files that settings name: whether they exist, and a digest of their contents."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bertender.core.artifact import Artifact, sha256_of
from bertender.core.card import CARD_NAME
from bertender.core.errors import DataError
from bertender.core.timing import TIMING_NAME
from bertender.models.finished_model import located
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig

__all__ = ["ArtifactFolder", "NamedFile", "TaskData", "TextFile", "folder_digest"]


class NamedFile(Protocol):
    """Files that a setting names."""

    @property
    def path(self) -> Path | None:
        """Its path, if the name can be one."""

    def check(self) -> None:
        """Raise a BertenderError where it is not there."""

    def digest(self) -> str:
        """Return a digest of its contents; empty for what is not on this machine."""


@dataclass(frozen=True)
class ArtifactFolder:
    """An artifact."""

    path: Path

    def check(self) -> None:
        if (self.path / CARD_NAME).is_file():
            Artifact.load(self.path, verify=False)
        else:
            located(str(self.path))

    def digest(self) -> str:
        return folder_digest(self.path)


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
class TaskData:
    """The data of a task by its name.

    Loading them takes a while, and the recipe's own task may rule them out: so the stage that reads
    them loads them in its check.
    """

    task: str
    path: None = None

    def check(self) -> None:
        """Do nothing: the settings have checked the name."""

    def digest(self) -> str:
        return load_task(TaskConfig(task=self.task)).fingerprint()


def folder_digest(folder: Path) -> str:
    """Return a digest of a folder's files; empty where there are none.

    How long it took to make an artifact is not a part of it.
    """
    digest = hashlib.sha256()
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != TIMING_NAME
    )
    for path in files:
        digest.update(f"{path.name} {sha256_of(path)}".encode())
    return digest.hexdigest() if files else ""
