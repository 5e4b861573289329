"""Settings that distil the toys quickly, by method."""

from __future__ import annotations

from typing import Any

QUICK: dict[str, Any] = {
    "layers": 2,
    "epochs": 4,
    "batch_size": 8,
    "learning_rate": 3e-3,
    "precision": "fp32",
}

SHORT = {**QUICK, "epochs": 1, "learning_rate": 2e-3}
OF_METHOD: dict[str, dict[str, Any]] = {
    "bilstm": {"layers": 1},
    "internal": {"earlier_epochs": 4},
    "internal-progressive": {"earlier_epochs": 4},
    "minilm": {"earlier_epochs": 6, "earlier_learning_rate": 2e-3},
    "minilm-v2": {
        "earlier_epochs": 6,
        "earlier_learning_rate": 2e-3,
        "relation_heads": 8,
    },
    "mobilebert": {"earlier_epochs": 6, "earlier_learning_rate": 5e-3, "learning_rate": 5e-3},
    "mobilebert-tiny": {"earlier_epochs": 6, "earlier_learning_rate": 5e-3, "learning_rate": 5e-3},
    "theseus-constant": {"earlier_epochs": 4},
    "static": {"layers": 1, "learning_rate": 1e-2},
    "tinybert": {"earlier_epochs": 6, "earlier_learning_rate": 2e-3},
}
