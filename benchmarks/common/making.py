"""Artifacts that benchmarks make once: a later call of the same command takes them as they are."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

from filelock import FileLock

from bertender.core.artifact import Artifact, digest_of
from bertender.core.build_once import build_once, forget_work
from bertender.core.card import library_versions
from bertender.core.config import Config
from bertender.core.errors import ConfigError
from bertender.core.files import CACHE_VARIABLE, save_text

__all__ = ["made_once", "seconds_of", "timed"]


Make = Callable[[Any, Path], Artifact]
"""Settings and a folder -> the artifact that is made there."""


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

    Of several processes that share the work, the first makes it and the others wait.

    The identity leaves out the code, which the identity of a recipe's step holds: the
    students of a benchmark take days, and outlive many a change that does not touch them.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    identity = (
        config.model_dump(mode="json"),
        task.fingerprint(),
        parent and parent.digest,
        library_versions(),
    )
    with FileLock(out.with_name(f".{out.name}.lock")):
        build_once([out], identity, lambda: make(config, out), digest_of)
    return Artifact.load(out)


def timed(make: Callable[[Any, Path], Artifact], cache: Path | None = None) -> Make:
    """Return a function that makes an artifact as `make` does, and notes the processor's time.

    It begins anew, whatever a run that was killed has left, so that the time is all of it.

    Args:
        make: of settings and a folder.
        cache: folder of the teacher's outputs, which later artifacts read; by default one that is
            empty before and gone afterwards.
    """

    def make_timed(config: Config, out: Path) -> Artifact:
        own = out.with_name(f"{out.name}.cache")
        forget_work(out)
        shutil.rmtree(own, ignore_errors=True)
        started = time.process_time()
        try:
            with patch.dict(os.environ, {CACHE_VARIABLE: str(cache or own)}):
                made = make(config, out)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        save_text(f"{time.process_time() - started:.1f}\n", _place_of_seconds(made))
        return made

    return make_timed


def seconds_of(made: Artifact) -> float:
    """Return the processor's time of an artifact that was timed.

    Raises:
        ConfigError: it is not there.
    """
    try:
        return float(_place_of_seconds(made).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{made.path}: how long it took is not there. Remove the folder, and run this again."
        ) from None


def _place_of_seconds(made: Artifact) -> Path:
    return made.path.with_name(f"{made.name}-{made.digest[:12]}.seconds")
