"""Shapes of buckets: their own, or one of few for a runtime that compiles a graph for each shape.

A server merges requests, so nearly every bucket has another number of texts and tokens than those
before it. Where each such shape is compiled when it first comes, that takes longer than padding to
a shape that has come already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, takewhile

import numpy as np
import numpy.typing as npt

from bertender.text.batch import Batch

__all__ = ["OwnShapes", "PaddedShapes", "without_padding"]

TOKENS = 8
"""Padded buckets have a multiple of it."""
AXES_OF_EXAMPLES = 2
"""Of logits (batch, labels); those of tokens have one more."""


@dataclass(frozen=True)
class OwnShapes:
    """Every bucket has the shape of its texts."""

    def rows(self, texts: int) -> int:
        """Return the rows of a bucket of at least one text."""
        return texts

    def tokens(self, longest: int) -> int:
        """Return the tokens of each row, by those of the longest text."""
        return longest

    def padded(self, bucket: Batch) -> Batch:
        """Return a bucket in its shape."""
        return bucket

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield rows and tokens of shapes that are worth a run before the first request."""
        yield from ()


@dataclass(frozen=True)
class PaddedShapes(OwnShapes):
    """Buckets are padded to 1, 2, 3, 4, 6, 8, 12, 16, ... rows, and to multiples of 8 tokens."""

    longest_input: int
    """Most tokens that the model reads."""

    def rows(self, texts: int) -> int:
        power = 1 << (texts - 1).bit_length()
        return power * 3 // 4 if texts <= power * 3 // 4 else power

    def tokens(self, longest: int) -> int:
        return max(longest, min(-(-longest // TOKENS) * TOKENS, self.longest_input))

    def padded(self, bucket: Batch) -> Batch:
        rows, tokens = bucket.arrays["attention_mask"].shape
        shape = self.rows(rows), self.tokens(tokens)
        arrays = {name: _padded(array, shape) for name, array in bucket.arrays.items()}
        return Batch(bucket.examples, arrays)

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield all that a bucket can have, with few rows first: most requests have few texts."""
        longest = min(self.longest_input, tokens_per_bucket)
        lengths = dict.fromkeys(self.tokens(least) for least in range(1, longest + 1, TOKENS))
        rows = dict.fromkeys(map(self.rows, takewhile(lambda each: each <= most_texts, count(1))))
        for each in rows:
            yield from ((each, length) for length in lengths if each * length <= tokens_per_bucket)


def without_padding(logits: npt.NDArray[np.float32], bucket: Batch) -> npt.NDArray[np.float32]:
    """Return the logits of a bucket, of each example or of each token, by its own shape."""
    rows, tokens = bucket.arrays["attention_mask"].shape
    return logits[:rows] if logits.ndim == AXES_OF_EXAMPLES else logits[:rows, :tokens]


def _padded(array: npt.NDArray[np.int64], shape: tuple[int, int]) -> npt.NDArray[np.int64]:
    """Return an array with rows and columns of zeros added, which the mask hides."""
    rows, tokens = array.shape
    return np.pad(array, ((0, shape[0] - rows), (0, shape[1] - tokens)))
