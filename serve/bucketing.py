"""Texts of mixed lengths to logits without paying for padding.

A merged batch is tokenised at once, ordered by length and cut into buckets; each bucket runs
padded to its own longest text only. The answers come back in the order of the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertender.text.batch import Batch, Encode
from bertender.text.batching import length_buckets
from bertender.text.example import Example

if TYPE_CHECKING:  # at run time it would load PyTorch into the server
    from bertender.models.predictor import Predictor

__all__ = ["BucketedClassifier"]


class BucketedClassifier:
    """A predictor and its encoding step, run bucket by bucket.

    Args:
        encode: examples to token arrays (batch, seq) with an `attention_mask`.
        predictor: token arrays to logits (batch, labels).
        label_count: the labels of the model.
        tokens_per_bucket: most tokens, padding included, in one run.
    """

    def __init__(
        self, encode: Encode, predictor: Predictor, label_count: int, tokens_per_bucket: int
    ) -> None:
        self.encode = encode
        self.predictor = predictor
        self.label_count = label_count
        self.tokens_per_bucket = tokens_per_bucket

    def logits(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of any number of examples, in their order."""
        logits = np.empty((len(examples), self.label_count), dtype=np.float32)
        if not examples:
            return logits
        batch = self.encode(examples)
        lengths = batch.arrays["attention_mask"].sum(axis=1)
        for rows in length_buckets(lengths.tolist(), self.tokens_per_bucket):
            logits[rows] = self.predictor.logits(_narrowed(batch, rows))
        return logits


def _narrowed(batch: Batch, rows: list[int]) -> Batch:
    """Return some rows of a batch, without the columns that are padding to all of them."""
    used = batch.arrays["attention_mask"][rows].any(axis=0)
    return Batch(
        tuple(batch.examples[row] for row in rows),
        {name: array[rows][:, used] for name, array in batch.arrays.items()},
    )
