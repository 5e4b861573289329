"""Which runtime was faster on this machine, as noted by the comparisons that were made on it.

A note is a file of the cache folder, keyed by what it depends on: the model of the CPU, the cores,
and the versions of the runtimes. `bertender compare` writes it, `bertender doctor` shows it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from bertender.core.cache_folder import cache_directory
from bertender.core.config import Record
from bertender.core.environment import Environment
from bertender.core.errors import BertenderError
from bertender.core.processors import processor_name
from bertender.core.saving import save_result
from bertender.core.speedup import Speedup

__all__ = ["FasterRuntime", "RuntimeNote", "note_of_machine", "save_note", "shown_note"]

logger = logging.getLogger(__name__)


class FasterRuntime(Record):
    """The fastest row of a comparison for one use, and the fastest in any other runtime."""

    use: str = Field(description="in words: one text, or batches of so many")
    runtime: str = Field(description="its title")
    row: str
    other_runtime: str
    other_row: str
    speedup: Speedup = Field(description="of the row over the other")

    def __str__(self) -> str:
        if self.speedup.low <= 1:
            return f"{self.use}: {self.runtime} and {self.other_runtime} are alike ({self.speedup})"
        return f"{self.use}: {self.row} is {self.speedup} as fast as {self.other_row}"


class RuntimeNote(Record):
    """What a comparison over runtimes says of a machine."""

    measured_at: str = Field(description="date and time, UTC, ISO 8601")
    processor: str = Field(description="its model, its widest instructions, and what is denied")
    cores: int
    threads: int = Field(description="of every runtime")
    task: str
    parameters: int = Field(description="of the model that was timed")
    versions: dict[str, str] = Field(description="of the runtimes' packages")
    uses: tuple[FasterRuntime, ...]


def save_note(note: RuntimeNote) -> None:
    """Save a note in the cache folder, over an earlier one of the same machine and versions.

    A comparison is not lost where that folder cannot be written: the log says so.
    """
    place = _place(note.processor, note.cores, note.versions)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        save_result(note, place)
    except (OSError, BertenderError) as error:
        logger.warning("which runtime was faster here is not noted in %s: %s", place, error)


def note_of_machine(environment: Environment, packages: tuple[str, ...]) -> RuntimeNote | None:
    """Return the note of a machine with these packages' versions; None where it has none.

    One that cannot be read counts as none: the next comparison writes it anew.
    """
    installed = {name: environment.versions.get(name, "") for name in packages}
    place = _place(processor_name(environment), environment.cores, installed)
    try:
        return RuntimeNote.model_validate_json(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # pydantic's own is a ValueError
        return None


def shown_note(note: RuntimeNote) -> str:
    """Return a note in words."""
    model = f"a model of {note.parameters / 1e6:.3g} M parameters on {note.task}"
    where = f"{model}, {note.threads} of {note.cores} cores, {note.measured_at[:10]}"
    return f"{'; '.join(map(str, note.uses))} ({where})"


def _place(processor: str, cores: int, versions: Mapping[str, str]) -> Path:
    key = repr((processor, cores, sorted(versions.items())))
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_directory() / "runtimes" / f"{name}.json"
