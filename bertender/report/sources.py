"""Saved comparisons: a file of `compare --out`, or in the folder of a recipe's run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bertender.comparison.records import read_comparison
from bertender.core.card import CARD_NAME
from bertender.core.errors import ConfigError, DataError

MODEL_FILES = (CARD_NAME, "config.json", "model.onnx")
"""Files in the folder of a model, but not in that of a run."""


def saved_in(sources: Sequence[str]) -> Path | None:
    """Return the saved comparison if it is the only source, or in a run's folder that is; None if
    the sources are models still to compare.

    Raises:
        ConfigError: a file or a run's folder is given with other sources; or a run has no
            comparison, or several.
    """
    saved = [path for path in map(Path, sources) if path.is_file() and path.suffix == ".json"]
    runs = [path for path in map(Path, sources) if is_run(path)]
    if not (saved or runs):
        return None
    if len(sources) > 1:
        raise ConfigError(
            f"{(saved or runs)[0]} is a saved table or the folder of a run, and a report is of one "
            f"alone; there are {len(sources)} sources. Give it alone, or models alone."
        )
    if saved:
        return saved[0]
    found = [path for path in sorted(runs[0].rglob("*.json")) if is_comparison(path)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(map(str, found))
        raise ConfigError(f"{runs[0]} has several tables: {names}. Give one of them.")
    raise ConfigError(
        f"{runs[0]} is no model and has no saved table: its recipe has no step of stage compare. "
        "Give the models to compare, the reference first."
    )


def is_run(path: Path) -> bool:
    """Return whether a path is a folder that is not a model's."""
    return path.is_dir() and not any((path / name).is_file() for name in MODEL_FILES)


def is_comparison(path: Path) -> bool:
    """Return whether a JSON file is a saved comparison."""
    try:
        read_comparison(path)
    except DataError:
        return False
    return True
