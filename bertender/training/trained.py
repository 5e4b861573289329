"""Training an artifact: the one sequence of every stage that trains.

work directory -> train, or resume from its checkpoints -> write on the main process -> load
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from bertender.core.artifact import Artifact
from bertender.core.distributed import on_main_process
from bertender.core.work import work_directory
from bertender.training.config import TrainingConfig

__all__ = ["Writer", "trained_artifact"]


class Writer(Protocol):
    """Writes what was trained. It runs on the main process alone."""

    def __call__(
        self, *, out: Path, stage: str, config: TrainingConfig, parent: Artifact | None
    ) -> None: ...


def trained_artifact(
    out: Path,
    stage: str,
    config: TrainingConfig,
    train: Callable[[Path], Writer],
    *,
    identity: Sequence[Any],
    parent: Artifact | None = None,
) -> Artifact:
    """Train, write and load an artifact; an interrupted run continues from its checkpoints.

    Args:
        out: directory of the artifact.
        stage: the stage's name.
        config: the stage's settings.
        train: (directory of the checkpoints) -> what writes the result. Where it fails, the
            checkpoints stay and nothing is written.
        identity: what shapes the run besides the settings, as digests of its texts and models;
            only a run of the same identity resumes.
        parent: the artifact that it is made from.

    Raises:
        ArtifactError: `out` cannot be written.
        BusyError: another process is at work for the same `out`.
    """
    with work_directory(out, stage, config.shaping(), *identity) as work:
        write = train(work)
        on_main_process(partial(write, out=out, stage=stage, config=config, parent=parent))
    return Artifact.load(out)
