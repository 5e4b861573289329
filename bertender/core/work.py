"""Work directories: the checkpoints of an interrupted run, from which the same run continues.

This is not `build_once`: what lies here is half done, and is removed when the run ends.

OUT's folder/.OUT.work/lock        held by the process that is at work
OUT's folder/.OUT.work/IDENTITY/   the checkpoints of one run: its settings, data and libraries
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from filelock import FileLock, Timeout

from bertender.core.artifact import check_replaceable
from bertender.core.card import library_versions
from bertender.core.errors import BusyError

__all__ = ["forget_work", "in_order", "work_directory"]


class _HasName(Protocol):
    """A part of a run."""

    @property
    def name(self) -> str: ...


Phase = TypeVar("Phase", bound=_HasName)


@contextmanager
def work_directory(out: Path, *identity: Any) -> Iterator[Path]:
    """Give the directory for the checkpoints of the run that will write `out`.

    It carries a digest of everything that shapes the run, so that only the same run resumes from
    it. It stays when the block fails, to resume from, and goes when the block succeeds.

    Raises:
        ArtifactError: `out` exists and is not an artifact.
        BusyError: another process is at work for the same `out`.
    """
    out = out.resolve()
    check_replaceable(out)
    folder = _folder(out)
    work = folder / _digest(*identity)
    work.mkdir(parents=True, exist_ok=True)
    if os.environ.get("RANK", "0") != "0":  # the first process of a distributed run sees to it
        yield work
        return
    with _held(folder / "lock", out):
        yield work
        shutil.rmtree(folder, ignore_errors=True)


def forget_work(out: Path) -> None:
    """Remove what interrupted runs have left for `out`, so that the next one starts afresh.

    Raises:
        BusyError: a process is at work for `out`.
    """
    folder = _folder(out.resolve())
    if folder.is_dir():
        with _held(folder / "lock", out):
            shutil.rmtree(folder, ignore_errors=True)


def in_order(phases: Sequence[Phase], work: Path) -> Iterator[tuple[Phase, Path, bool]]:
    """Yield each phase of a run, the folder of its checkpoints, and whether it is the last."""
    for place, phase in enumerate(phases):
        folder = work / f"{place}-{phase.name}" if len(phases) > 1 else work
        yield phase, folder, phase is phases[-1]


def _folder(out: Path) -> Path:
    return out.parent / f".{out.name}.work"


def _digest(*identity: Any) -> str:
    # the batches are laid out for so many processes, so a run of another number cannot resume
    processes = os.environ.get("WORLD_SIZE", "1")
    whole = json.dumps([*identity, processes, library_versions()], sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


@contextmanager
def _held(lock: Path, out: Path) -> Iterator[None]:
    """Hold a lock that the system gives back when the process dies, however it dies."""
    held = FileLock(lock, timeout=0)
    try:
        held.acquire()
    except Timeout:
        raise BusyError(
            f"another process is building {out}. Wait until it ends, or choose another --out."
        ) from None
    try:
        yield
    finally:
        held.release()
