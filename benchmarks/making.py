"""Artifacts that benchmarks make once: a later call of the same command takes them as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from bertender.core.artifact import Artifact, digest_of
from bertender.core.build_once import build_once
from bertender.core.card import library_versions
from bertender.core.config import Config

__all__ = ["made_once"]


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
