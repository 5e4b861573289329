"""Settings that a rival opens a model with, the same for all. It needs no package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Example", "Opening", "Predict", "inputs_of"]

Example = Sequence[str]
"""A text, or the two of a pair."""
Predict = Callable[[Sequence[Example]], Any]
"""examples -> probabilities (examples, labels), in the order of the labels"""


def inputs_of(examples: Sequence[Example]) -> list[str | tuple[str, ...]]:
    """Return examples as tokenizers take them: strings, or tuples of two."""
    return [example[0] if len(example) == 1 else tuple(example) for example in examples]


@dataclass(frozen=True)
class Opening:
    """A model, and how it runs."""

    folder: Path
    """Of the artifact."""
    threads: int
    max_length: int
    """Tokens at which an example is cut."""
    settings: Mapping[str, Any]
    """Those of the row of RIVALS."""
