"""What the owner of a door in a process of its own hands over to it, and hears from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import (
    ArtifactError,
    BertenderError,
    ConfigError,
    ModelError,
    PortTakenError,
    RuntimeMissingError,
    ServerMissingError,
    ServingError,
)
from serve.config import ServeConfig
from serve.server.workspace import Workspace

DOOR = "serve.door"
"""The module that is the door's process."""

RAISED: Mapping[str, type[BertenderError]] = {
    each.__name__: each
    for each in (
        PortTakenError,
        ServerMissingError,
        ServingError,
        RuntimeMissingError,
        ModelError,
        ArtifactError,
        ConfigError,
        BertenderError,
    )
}
"""Errors that a door reports by their names; others are the nearest of these."""


class Start(Record):
    """How a door is started: a file in its workspace."""

    settings: dict[str, Any] = Field(description="of a ServeConfig, those that are set")
    repository: Path
    workspace: Path
    shared_memory: str
    lock: int | None = Field(description="file descriptor of who uses the workspace")
    reports: int = Field(description="file descriptor that the door writes to, a line of JSON each")

    def write(self) -> Path:
        """Write it for this user alone, and return where."""
        file = self.workspace / "door.json"
        file.touch(mode=0o600)
        file.write_text(self.model_dump_json() + "\n", encoding="utf-8")
        return file

    @property
    def config(self) -> ServeConfig:
        return ServeConfig.parse(self.settings)

    def opened(self) -> Workspace:
        """Return the workspace, which its owner has made."""
        workspace = Workspace(self.workspace)
        workspace.shared_memory, workspace.lock = self.shared_memory, self.lock
        return workspace


def report_of(error: BertenderError) -> dict[str, str]:
    """Return an error as a door reports it."""
    names = (each.__name__ for each in type(error).__mro__)
    return {"error": next(name for name in names if name in RAISED), "reason": str(error)}
