"""What the commands have made of the toy task, and settings that make it quickly."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.front import ToyFiles

QUICK = ("--epochs", "6", "--batch-size", "16", "--learning-rate", "3e-3", "--max-length", "32")


@dataclass(frozen=True)
class Made:
    """A folder of artifacts that the commands have made, each from the one before."""

    folder: Path
    files: ToyFiles

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


FAST = (
    "--processes",
    "1",
    "--rounds",
    "2",
    "--single-texts",
    "2",
    "--batch-size",
    "2",
    "--threads",
    "1",
)
