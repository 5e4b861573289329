"""Softmax: the part of the kinds of problems in which each row of logits decides for one label."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.card import Calibration
from bertender.metrics.calibration import log_softmax
from bertender.problems.problem import FloatArray, IntArray, Outputs


class Softmax:
    """A row of logits is a softmax over labels; see `Problem`."""

    calibrated_by: tuple[str, ...] = ("temperature",)
    one_of_labels = True
    calibration: Calibration | None

    @property
    def temperature(self) -> float:
        """What logits are divided by before the softmax; no prediction depends on it."""
        return self.calibration.temperature if self.calibration else 1.0

    def probabilities(
        self, logits: npt.NDArray[Any], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        scaled = np.asarray(logits, dtype=np.float64) / self.temperature
        return np.asarray(np.exp(log_softmax(scaled)))

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return the label of each row, (rows, 1)."""
        return np.asarray(outputs.logits.argmax(axis=1), dtype=np.int64)[:, None]

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return half the distance of the two largest: they swap where both move so far."""
        ordered = np.sort(outputs.logits, axis=1)
        return np.asarray(ordered[:, -1:] - ordered[:, -2:-1]) / 2

    def probable(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return logits less the mean of each row."""
        return np.asarray(logits - logits.mean(axis=1, keepdims=True))

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return the mean KL divergence."""
        first, second = (log_softmax(each.astype(np.float64)) for each in (reference, candidate))
        return float((np.exp(first) * (first - second)).sum(axis=1).mean())


def softmax_of_largest(logits: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Return the probability of each row's prediction, (rows, labels) -> (rows,)."""
    exponents = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(1.0 / exponents.sum(axis=1), dtype=np.float32)  # the largest is exp(0)
