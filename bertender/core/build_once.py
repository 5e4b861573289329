"""Work that is done once: stamps of builds, cached files, checkpoints of interrupted runs.

`build_once` reuses files whose stamp has the same identity and which are unchanged since. Stamps
lie in the folder `.stamps` next to them and are written last: files left by a killed process have
none. Checkpoints lie in a work directory, which is removed when the run ends:

OUT's folder/.OUT.work/lock        held by the process that is at work
OUT's folder/.OUT.work/IDENTITY/   the checkpoints of one run: its settings, data and libraries
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol, TypeAlias, TypeVar

from bertender.core.artifact import check_replaceable
from bertender.core.card import library_versions
from bertender.core.errors import BertenderError, BusyError
from bertender.core.files import CACHE_VARIABLE, replacing, replacing_directory

logger = logging.getLogger(__name__)

STAMPS = ".stamps"
NOTED_S = 10.0
"""Interval at which the time of a build is written, for the case that it is killed."""

Fingerprint: TypeAlias = Callable[[Path], str]
"""place -> digest of its content; raises ValueError, OSError or a BertenderError for damaged
content"""


def sizes_of(place: Path) -> str:
    """Return the sizes of a file, or of all files of a directory, by name."""
    if place.is_file():
        return str(place.stat().st_size)
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return json.dumps([(str(path.relative_to(place)), path.stat().st_size) for path in files])


def build_once(
    places: Sequence[Path],
    identity: Any,
    build: Callable[[], object],
    fingerprint: Fingerprint = sizes_of,
    *,
    fresh: bool = False,
) -> bool:
    """Build files at some places unless they are already built; return whether they were.

    Args:
        places: files and folders that `build` writes, each whole or not at all; the first names the
            stamp.
        identity: everything that affects the result, as plain JSON values.
        build: writes the places.
        fingerprint: digest of the content of a place.
        fresh: build in any case.
    """
    stamp = _Stamp(places, identity, fingerprint)
    if not fresh and stamp.holds():
        return True
    try:
        with stamp.counting(fresh):  # the last stamp is not valid during the build
            build()
    except Exception:  # an interrupted run continues
        if not places[0].exists():
            stamp.path.unlink(missing_ok=True)
        raise
    stamp.write()
    return False


def seconds_of_build(place: Path) -> float:
    """Return the seconds that `build_once` took for a place, in interrupted runs too; 0 if they are
    unknown."""
    return _seconds_in(_read(_stamp_of(place)))


def was_built(place: Path) -> bool:
    """Return whether `build_once` has built this place as the first of its places, or was killed
    while it did."""
    stamp = _stamp_of(place)
    return stamp.is_file() and not _read(stamp).get("absent")


def directory_once(directory: Path, identity: Any, write: Callable[[Path], object]) -> Path:
    """Return a directory that `write` has filled, in this run or the interrupted run that it
    resumes.

    In a distributed run, the first process writes it and the others wait.
    """
    from filelock import FileLock  # not installed where artifacts are only served

    def build() -> None:
        with replacing_directory(directory) as draft:
            write(draft)

    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(directory.with_name(f".{directory.name}.lock")):
        build_once([directory], identity, build)
    return directory


def _stamp_of(place: Path) -> Path:
    return place.parent / STAMPS / f"{place.name}.json"


class _Stamp:
    """Record of the inputs of some places, and of the files written there."""

    def __init__(self, places: Sequence[Path], identity: Any, fingerprint: Fingerprint) -> None:
        first, *_ = self.places = tuple(places)
        self.path = _stamp_of(first)
        plain = json.dumps(identity, sort_keys=True, default=str)
        self.identity = hashlib.sha256(plain.encode()).hexdigest()
        self.fingerprint = fingerprint
        self.seconds = 0.0

    def holds(self) -> bool:
        """Return whether the places hold what would be built; the log has the reason if not."""
        if not all(place.exists() for place in self.places):
            logger.info("%s is made: it is not there yet", self.places[0])
            return False
        if not self.path.exists():
            logger.info("%s is made again: what it was made of is not recorded", self.places[0])
            return False
        try:
            recorded = json.loads(self.path.read_text(encoding="utf-8"))
            current = self._record()
        except (BertenderError, OSError, ValueError) as error:
            logger.warning("%s is damaged and is made again: %s", self.places[0], error)
            return False
        if isinstance(recorded, dict) and {**recorded, **current} == recorded:
            return True
        if isinstance(recorded, dict) and recorded.get("identity") == self.identity:
            logger.warning(
                "%s is damaged and is made again: it is not what was written", self.places[0]
            )
        else:
            logger.info("%s is made again: it was made of something else", self.places[0])
        return False

    @contextmanager
    def counting(self, fresh: bool) -> Iterator[None]:
        """Replace the record during a build by one without fingerprints, by which a killed run
        recognises its own work and the seconds that it took."""
        recorded = _read(self.path)
        earlier = 0.0
        if not fresh and recorded.get("unfinished") == self.identity:
            earlier = _seconds_in(recorded)
        started, ended = time.monotonic(), Event()

        def note(**more: bool) -> None:
            self.seconds = earlier + time.monotonic() - started
            with suppress(OSError):  # if nothing can be written, `build` reports it
                self._save({"unfinished": self.identity, **more})

        def note_often() -> None:
            while not ended.wait(NOTED_S):
                note()

        note()
        noting = Thread(target=note_often, daemon=True)
        noting.start()
        try:
            yield
        finally:
            ended.set()
            noting.join()
            note(absent=not self.places[0].exists())

    def write(self) -> None:
        self._save(self._record())

    def _save(self, record: dict[str, Any]) -> None:
        with replacing(self.path) as draft:
            draft.write_text(json.dumps({**record, "seconds": self.seconds}), encoding="utf-8")

    def _record(self) -> dict[str, Any]:
        fingerprints = [self.fingerprint(place) for place in self.places]
        return {"identity": self.identity, "fingerprints": fingerprints}


def _read(stamp: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(stamp.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _seconds_in(record: Mapping[str, Any]) -> float:
    seconds = record.get("seconds")
    return seconds if isinstance(seconds, float) else 0.0


Value = TypeVar("Value")


def cached(
    path: Path,
    make: Callable[[], Value],
    save: Callable[[Value, Path], object],
    load: Callable[[Path], Value],
    fingerprint: Fingerprint,
) -> Value:
    """Return the value in a file of the cache folder, computing and saving it if needed.

    If the folder cannot be written, a warning says so, and the value is computed every time.

    Args:
        path: the file; its name has a digest of everything that affects the value.
        make: computes the value.
        save: writes (value, draft).
        load: reads the file.
        fingerprint: digest of the file.
    """
    made: list[Value] = []

    def build() -> None:
        made.append(make())
        with replacing(path) as draft:
            save(made[0], draft)

    try:
        build_once([path], path.name, build, fingerprint)
        return load(path)
    except OSError as error:
        if not made:  # the error is of `make`
            raise
        logger.warning(
            "%s cannot be cached: %s. Set %s to another folder.", path, error, CACHE_VARIABLE
        )
        return made[0]


class _HasName(Protocol):
    """A part of a run."""

    @property
    def name(self) -> str: ...


Phase = TypeVar("Phase", bound=_HasName)


@contextmanager
def work_directory(out: Path, *identity: Any) -> Iterator[Path]:
    """Give the directory for the checkpoints of the run that will write `out`.

    Its name has a digest of everything that affects the run, so that only the same run resumes from
    it. The directory stays when the block fails, for resuming, and is removed when it succeeds.

    Raises:
        ArtifactError: `out` exists and is not an artifact.
        BusyError: another process is at work for the same `out`.
    """
    out = out.resolve()
    check_replaceable(out)
    folder = _folder(out)
    # batches are distributed over the processes, so a run with another number cannot resume
    whole = [*identity, os.environ.get("WORLD_SIZE", "1"), library_versions()]
    text = json.dumps(whole, sort_keys=True, default=str)
    work = folder / hashlib.sha256(text.encode()).hexdigest()[:16]
    others = [] if work.exists() else [*folder.glob("*/")]
    work.mkdir(parents=True, exist_ok=True)
    if os.environ.get("RANK", "0") != "0":  # the first process of a distributed run takes the lock
        yield work
        return
    with _held(folder / "lock", out):
        if others:
            logger.warning(
                "%s starts from the beginning: the run for it that has not ended had other "
                "settings, data or versions of libraries",
                out,
            )
        yield work
        shutil.rmtree(folder, ignore_errors=True)


def forget_work(out: Path) -> None:
    """Remove the checkpoints of interrupted runs for `out`, so that the next run starts afresh.

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


@contextmanager
def _held(lock: Path, out: Path) -> Iterator[None]:
    """Hold a lock that the system releases when the process dies for any reason."""
    from filelock import FileLock, Timeout

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
