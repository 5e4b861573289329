"""build_once: make something unless it is there already.

What lies at a place is reused where its stamp has the same identity and it is still what was
written then. Otherwise it is built, and the log has the reason. Stamps lie in the
folder `.stamps` next to it and are written last: what a killed process leaves has none.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock

from bertender.core.atomic import replacing, replacing_directory
from bertender.core.errors import BertenderError

__all__ = ["STAMPS", "Fingerprint", "build_once", "directory_once", "sizes_of", "was_built"]

logger = logging.getLogger(__name__)

STAMPS = ".stamps"

Fingerprint: TypeAlias = Callable[[Path], str]
"""place -> a digest of its content; raises ValueError, OSError or a BertenderError
where it is damaged"""


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
    """Build what belongs at some places, unless it is there; return whether it was.

    Args:
        places: all that `build` writes, each whole or not at all. The first one names the stamp.
        identity: all that shapes it, as JSON can hold it.
        build: writes it.
        fingerprint: digest of what lies at a place.
        fresh: build it in any case.
    """
    stamp = _Stamp(places, identity, fingerprint)
    if not fresh and stamp.holds():
        return True
    stamp.begin()  # the last one does not hold for what is built now
    try:
        build()
    except BaseException:
        if not places[0].exists():
            stamp.path.unlink(missing_ok=True)
        raise
    stamp.write()
    return False


def was_built(place: Path) -> bool:
    """Return whether `build_once` has made, or begun, the first of its places here."""
    return _stamp_of(place).is_file()


def directory_once(directory: Path, identity: Any, write: Callable[[Path], object]) -> Path:
    """Return a directory that `write` has filled, by this run or by the one that it resumes.

    Of the processes of a distributed run, the first to come writes it and the others wait.
    """

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
    """The record of the inputs of some places, and of the files that were written there."""

    def __init__(self, places: Sequence[Path], identity: Any, fingerprint: Fingerprint) -> None:
        first, *_ = self.places = tuple(places)
        self.path = _stamp_of(first)
        plain = json.dumps(identity, sort_keys=True, default=str)
        self.identity = hashlib.sha256(plain.encode()).hexdigest()
        self.fingerprint = fingerprint

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
        return self._agrees(recorded, current)

    def begin(self) -> None:
        """Replace the record by an empty one, by which a killed run still knows its own work."""
        with suppress(OSError):  # where nothing can be written, `build` says so
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("{}", encoding="utf-8")

    def write(self) -> None:
        with replacing(self.path) as draft:
            draft.write_text(json.dumps(self._record()), encoding="utf-8")

    def _record(self) -> dict[str, Any]:
        fingerprints = [self.fingerprint(place) for place in self.places]
        return {"identity": self.identity, "fingerprints": fingerprints}

    def _agrees(self, recorded: Any, current: dict[str, Any]) -> bool:
        if recorded == current:
            return True
        if isinstance(recorded, dict) and recorded.get("identity") == self.identity:
            logger.warning(
                "%s is damaged and is made again: it is not what was written", self.places[0]
            )
        else:
            logger.info("%s is made again: it was made of something else", self.places[0])
        return False
