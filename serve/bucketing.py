"""Texts of mixed lengths to logits without paying for padding.

A merged batch is tokenised at once, ordered by length and cut into buckets; each bucket runs
padded to its own longest text, and where that is faster to the next of few shapes. The outputs come
back in the order of the texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.problems import SINGLE_LABEL, Outputs, ProblemType
from bertender.text.batch import LONGEST_INPUT_BY_DEFAULT, Batch, Encode, Tokenize
from bertender.text.batching import length_buckets
from bertender.text.example import Example
from serve.bucket_runners import BucketRunner, OneByOne
from serve.shapes import OwnShapes, without_padding

if TYPE_CHECKING:  # at run time it would load PyTorch into the server
    from bertender.models.predictor import Predictor

__all__ = ["BucketedClassifier", "longest_input_of"]


@dataclass
class BucketedClassifier:
    """A predictor and its encoding step, run bucket by bucket."""

    encode: Encode
    """Examples to token arrays (batch, seq) with an `attention_mask`."""
    predictor: Predictor
    """Token arrays to logits (batch, labels)."""
    label_count: int
    tokens_per_bucket: int
    """Most tokens, padding included, in one run."""
    problem: ProblemType[Any] = SINGLE_LABEL
    """The problem type of the model, a row of PROBLEMS."""
    runner: BucketRunner = field(default_factory=OneByOne)
    """Runs the buckets of a batch."""
    shapes: OwnShapes = field(default_factory=OwnShapes)
    """The shapes that buckets are padded to."""

    @property
    def longest_input(self) -> int:
        """Most tokens of an example that the model reads."""
        return longest_input_of(self.encode)

    def logits(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """Return the logits of any number of examples, below one another, in their order."""
        nothing = np.empty((0, self.label_count), dtype=np.float32)
        return np.concatenate([nothing, *(each.logits for each in self.outputs(examples))])

    def outputs(self, examples: Sequence[Example]) -> list[Outputs]:
        """Return the outputs of any number of examples, in their order."""
        return self.run(self.encode(examples), range(len(examples))) if examples else []

    def run(self, batch: Batch, rows: Sequence[int]) -> list[Outputs]:
        """Return the outputs of some rows of an encoded batch, in the order of `rows`."""
        lengths = batch.arrays["attention_mask"][list(rows)].sum(axis=1).tolist()
        padded = [self.shapes.tokens(length) for length in lengths]
        places = length_buckets(padded, self.tokens_per_bucket, rows=self.shapes.rows)
        buckets = [[rows[place] for place in bucket] for bucket in places]

        def outputs_of(bucket: list[int]) -> Sequence[Outputs]:
            narrowed = _narrowed(batch, bucket)
            logits = self.predictor.logits(self.shapes.padded(narrowed))
            return self.problem.outputs(without_padding(logits, narrowed), narrowed)

        by_row = dict[int, Outputs]()
        for bucket, outputs in zip(buckets, self.runner.run(outputs_of, buckets), strict=True):
            by_row.update(zip(bucket, outputs, strict=True))
        return [by_row[row] for row in rows]


def longest_input_of(encode: Encode) -> int:
    """Return the most tokens of an example that an encoding step lets through."""
    return encode.max_length if isinstance(encode, Tokenize) else LONGEST_INPUT_BY_DEFAULT


def _narrowed(batch: Batch, rows: list[int]) -> Batch:
    """Return some rows of a batch, without the columns that are padding to all of them."""
    used = batch.arrays["attention_mask"][rows].any(axis=0)
    return Batch(
        tuple(batch.examples[row] for row in rows),
        {name: array[rows][:, used] for name, array in batch.arrays.items()},
        None if batch.words is None else batch.words[rows][:, used],
    )
