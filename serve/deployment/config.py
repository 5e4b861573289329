"""Settings of `bertender deploy`."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from bertender.core.config import Config
from serve.wire import MODEL_NAME

__all__ = ["DeployConfig"]


class DeployConfig(Config):
    """Settings of `deploy`."""

    model: str = Field(MODEL_NAME, description="name of the model on the server")
    admin_token_file: Path | None = Field(
        None, description="the file that `bertender serve --admin-token-file` was started with"
    )
    other_task: bool = Field(
        False,
        description="replace a model of another task, of other labels, or with other inputs",
    )
    keep: int = Field(1, ge=0, description="earlier versions that stay in the repository")
    timeout_s: float = Field(
        120.0,
        gt=0,
        description="seconds that each step may take: to load a model, to unload one, to answer a "
        "golden text",
    )
    tritonserver: Path | None = Field(
        None,
        description="for a directory: another server than that of the wheel to try the model in, "
        "ROOT/bin/tritonserver",
    )
