"""Settings that distil on a toy corpus quickly, by method."""

from __future__ import annotations

from typing import Any

QUICK: dict[str, Any] = {
    "layers": 2,
    "epochs": 4,
    "batch_size": 8,
    "max_length": 32,
    "learning_rate": 2e-3,
    "precision": "fp32",
}

FEW_WORDS = {"weights": {"words": 0.1}}
"""The toy teacher predicts others than were masked."""
OWN_VOCABULARY = {"hidden_size": 16, "heads": 4, "vocabulary_size": 100}
OF_METHOD: dict[str, dict[str, Any]] = {
    "distilbert": FEW_WORDS,
    "mobilebert": {**FEW_WORDS, "epochs": 8, "learning_rate": 5e-3},
    "mobilebert-tiny": {**FEW_WORDS, "epochs": 8, "learning_rate": 5e-3, "batches": "sorted"},
    "minilm-v2": {"relation_heads": 8},  # the toys are too narrow for the paper's 48
    "small-vocab": OWN_VOCABULARY,
}


def settings_of(method: str, **changes: Any) -> dict[str, Any]:
    return {"method": method, **QUICK, **OF_METHOD.get(method, {}), **changes}
