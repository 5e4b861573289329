"""Probabilities of logits, for rivals that return logits. It needs numpy alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["softmax"]


def softmax(logits: Any) -> npt.NDArray[np.float32]:
    """Return the probabilities (texts, labels) of logits (texts, labels)."""
    exponents = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=-1, keepdims=True), np.float32)
