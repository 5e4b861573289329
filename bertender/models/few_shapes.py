"""Batches of few shapes, for a runtime that compiles a graph anew for each.

A server merges requests, so that nearly every batch has other rows and tokens than those before
it. Where each such shape is compiled when it comes, that costs more than the padding to a shape
that has come already (`benchmarks/serving.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertender.text.batch import Batch

if TYPE_CHECKING:  # it loads PyTorch
    from bertender.models.predictor import Predictor

__all__ = ["FewShapes", "rows_of_shape", "tokens_of_shape"]

TOKENS = 8
"""Lengths of batches are multiples of it."""
TOKENS_AXIS = 1


class FewShapes:
    """A predictor whose batches are padded to one of few shapes, and its logits cut to their own.

    Args:
        predictor: what runs them. It must not let padded tokens change others, which parity checks
            of every export.
        longest: most tokens that the model reads.
    """

    def __init__(self, predictor: Predictor, longest: int) -> None:
        self.predictor = predictor
        self.longest = longest

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch, or (batch, seq, labels) of its tokens."""
        rows, tokens = batch.arrays["attention_mask"].shape
        shape = rows_of_shape(rows), tokens_of_shape(tokens, self.longest)
        padded = {name: _padded(array, shape) for name, array in batch.arrays.items()}
        logits = self.predictor.logits(Batch(batch.examples, padded))[:rows]
        return logits[:, :tokens] if logits.ndim > 1 + TOKENS_AXIS else logits


def rows_of_shape(rows: int) -> int:
    """Return the next of 1, 2, 3, 4, 6, 8, 12, 16, ...: less than half of the rows more."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if rows <= power * 3 // 4 else power


def tokens_of_shape(tokens: int, longest: int) -> int:
    """Return the next multiple of TOKENS, or the longest input that the model reads."""
    return max(tokens, min(-(-tokens // TOKENS) * TOKENS, longest))


def _padded(array: npt.NDArray[np.int64], shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return an array with its last row repeated, and masked tokens added to each.

    Which tokens does not matter; a row of masked ones alone would have no attention to share out.
    """
    rows, tokens = array.shape
    padded = np.zeros(shape, dtype=array.dtype)
    padded[:rows, :tokens] = array
    padded[rows:, :tokens] = array[-1]
    return padded
