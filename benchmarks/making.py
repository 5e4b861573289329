"""Artifacts that benchmarks make once: a later call of the same command takes them as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bertender.core.artifact import Artifact, digest_of
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.config import Config
from bertender.core.errors import ConfigError
from bertender.core.saving import save_text

__all__ = ["made_once", "note_seconds", "seconds_of"]


class _Data(Protocol):
    """A task of any kind."""

    def fingerprint(self) -> str: ...


def made_once(
    out: Path,
    config: Config,
    task: _Data,
    parent: Artifact | None,
    make: Callable[[Config, Path], object],
) -> Artifact:
    """Return the artifact at `out` of these settings, data and parent, made now or before.

    The identity leaves out the code, which the identity of a recipe's step holds: the
    students of a benchmark take days, and outlive many a change that does not touch them.
    """
    identity = (
        config.model_dump(mode="json"),
        task.fingerprint(),
        parent and parent.digest,
        library_versions(),
    )
    build_once([out], identity, lambda: make(config, out), digest_of)
    return Artifact.load(out)


def note_seconds(made: Artifact, seconds: float) -> None:
    """Write how long an artifact took, next to it: a later call finds it made."""
    save_text(f"{seconds:.1f}\n", _place_of_seconds(made))


def seconds_of(made: Artifact) -> float:
    """Return how long an artifact took.

    Raises:
        ConfigError: that was not noted, since the run was killed.
    """
    try:
        return float(_place_of_seconds(made).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{made.path}: how long it took is not there, since the run was killed. Remove it, "
            "and run this again."
        ) from None


def _place_of_seconds(made: Artifact) -> Path:
    return made.path.with_name(f"{made.name}-{made.digest[:12]}.seconds")
