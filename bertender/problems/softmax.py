"""Softmax: the part of the kinds of problems in which each row of logits decides for one label."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.problems.problem import FloatArray, IntArray, Outputs


class Softmax:
    """A row of logits is a softmax over labels; see `Problem`."""

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
        first, second = (_log_softmax(each.astype(np.float64)) for each in (reference, candidate))
        return float((np.exp(first) * (first - second)).sum(axis=1).mean())


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def softmax_of_largest(logits: FloatArray) -> FloatArray:
    """Return the probability of each row's prediction, (rows, labels) -> (rows,)."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(1.0 / exponents.sum(axis=1), dtype=np.float32)  # the largest is exp(0)
