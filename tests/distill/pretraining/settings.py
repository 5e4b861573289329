"""Settings that pre-train on toy passages quickly, and what opens the result."""

from __future__ import annotations

from typing import Any

from transformers import (
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
)

from distill.pretraining.config import OBJECTIVES

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
