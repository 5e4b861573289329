"""A marked part of a document: what is made from raw results, and from which."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RESULTS", "ROOT", "Block", "of_each", "of_one"]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = "benchmarks/results"
"""Folder of the raw results."""


@dataclass(frozen=True)
class Block:
    """A marked part of a document, made from raw results."""

    document: str
    files: tuple[str, ...]
    write: Callable[[Mapping[str, Path]], str]
    """places of the files by their names -> Markdown"""


def of_one(write: Callable[[str, Path], str]) -> Callable[[Mapping[str, Path]], str]:
    """Return what writes a table of one file, by its name and place, as a block of files."""

    def block(files: Mapping[str, Path]) -> str:
        ((name, path),) = files.items()
        return write(name, path)

    return block


def of_each(write: Callable[[str, Path], str]) -> Callable[[Mapping[str, Path]], str]:
    """Return what writes the tables of files, by their names and places, below each other."""

    def block(files: Mapping[str, Path]) -> str:
        return "\n".join(write(name, path) for name, path in files.items())

    return block
