"""Stand-ins for rivals. They need no package, so that they run in an empty environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.rivals.opening import Opening, Predict

__all__ = ["open_constant", "open_nothing", "open_once"]


def open_constant(opening: Opening) -> Predict:
    """Return what gives every text the first of two labels, as probable as the settings say."""
    first = opening.settings.get("first", 1.0)

    def predict(texts: Sequence[str]) -> list[list[float]]:
        print("a line that is no result")
        return [[first, 1 - first] for _ in texts]

    return predict


def open_nothing(opening: Opening) -> Predict:
    """Raise as a library does that cannot open a model."""
    raise ValueError(f"no conversion for {opening.folder}")


def open_once(opening: Opening) -> Predict:
    """Raise as a library does that opens a model, but not when others run beside it."""
    seen = Path(opening.settings["seen"])
    if seen.exists():
        raise ValueError("no memory left")
    seen.touch()
    return open_constant(opening)
