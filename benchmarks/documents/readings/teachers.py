"""The scores of a teacher's other settings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.common.words import paragraph

__all__ = ["teachers_reading"]


def teachers_reading(files: Mapping[str, Path]) -> str:
    """Return the scores of the teachers that were tried, the first being the one in use."""
    ((name, path),) = files.items()
    results = json.loads(path.read_text(encoding="utf-8"))
    first, *others = results["teachers"]
    score, texts = _epochs(first)[-1], results["held_out_texts"]
    error = math.sqrt(score * (1 - score) / texts)
    last = [_epochs(each)[-1] for each in results["teachers"]]
    tried = "; ".join(f"{_settings(each)} gave {_scores(each)}" for each in others)
    return paragraph(
        f"By learning rate, batch and epochs, with the score after each epoch: {_settings(first)} "
        f"gave {_scores(first)}, and is in use; {tried} (`{name}`).",
        f"The last scores lie within {max(last) - min(last):.3f} of each other; one standard error "
        f"of a score is {error:.3f}.",
    )


def _settings(teacher: Mapping[str, Any]) -> str:
    chosen = teacher["settings"]
    return f"{chosen['learning_rate']:g}, {chosen['batch_size']}, {chosen['epochs']}"


def _epochs(teacher: Mapping[str, Any]) -> list[float]:
    scores: list[float] = teacher["accuracy_after_each_epoch"]
    return scores


def _scores(teacher: Mapping[str, Any]) -> str:
    return " then ".join(f"{score:.3f}" for score in _epochs(teacher))
