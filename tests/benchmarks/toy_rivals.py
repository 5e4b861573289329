"""Stand-ins for rivals. They need no package, so that they run in an empty environment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.rivals.opening import Example, Opening, Predict

__all__ = ["open_brittle", "open_constant", "open_nothing"]


def open_constant(opening: Opening) -> Predict:
    """Return what gives every example the first of two labels, as probable as the settings say."""
    first = opening.settings.get("first", 1.0)

    def predict(examples: Sequence[Example]) -> list[list[float]]:
        print("a line that is no result")
        return [[first, 1 - first] for _ in examples]

    return predict


def open_nothing(opening: Opening) -> Predict:
    """Raise as a library does that cannot open a model."""
    raise ValueError(f"no conversion for {opening.folder}")


def open_brittle(opening: Opening) -> Predict:
    """Return what predicts every example once, and then fails while it is opened or timed.

    Settings: `seen` is a file in which it counts how often it was opened, `timed` whether it opens
    again, and `failures` how often it fails.
    """
    seen = Path(opening.settings["seen"])
    before = len(seen.read_text()) if seen.exists() else 0
    seen.write_text("." * (before + 1))
    fails = 0 < before <= opening.settings["failures"]
    if fails and not opening.settings["timed"]:
        raise ValueError("no memory left")
    predict = open_constant(opening)

    def failing(examples: Sequence[Example]) -> list[list[float]]:
        if fails:
            raise ValueError("no memory left")
        return predict(examples)

    return failing
