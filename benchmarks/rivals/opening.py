"""Settings that a rival opens a model with, the same for all. It needs no package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Opening", "Predict"]

Predict = Callable[[Sequence[str]], Any]
"""texts -> probabilities (texts, labels), in the order of the labels"""


@dataclass(frozen=True)
class Opening:
    """A model, and how it runs."""

    folder: Path
    """Of the artifact."""
    threads: int
    max_length: int
    """Tokens at which a text is cut."""
    settings: Mapping[str, Any]
    """Those of the row of RIVALS."""
