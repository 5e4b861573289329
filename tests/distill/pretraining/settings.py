"""Settings that pre-train on toy passages quickly, and what opens the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
)

from distill.pretraining.config import OBJECTIVES, PHRASE

SMALL: dict[str, Any] = {
    "vocabulary_size": 200,
    "layers": 1,
    "hidden_size": 32,
    "heads": 2,
    "epochs": 8,
    "batch_size": 8,
    "max_length": 32,
    "learning_rate": 2e-3,
    "precision": "fp32",
}

BRIEF = {**SMALL, "epochs": 1, "batch_size": 4, "checkpoint_steps": 3}
OPENS_AS: dict[str, Any] = {
    **dict.fromkeys(OBJECTIVES, AutoModelForMaskedLM),
    "rtd": AutoModelForPreTraining,
    "rtd-gdes": AutoModelForPreTraining,
}


def with_phrases(objective: str, folder: Path) -> dict[str, Any]:
    """The settings of an objective: of that which needs a file of phrases, the file too."""
    if objective != PHRASE:
        return {"objective": objective}
    file = folder / "phrases.txt"
    file.write_text("the apple\nthe hammer\n", encoding="utf-8")
    return {"objective": objective, "phrases": file}
