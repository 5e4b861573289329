"""Calibration: what values a graph's activations take on real text.

Two passes over the texts, batch by batch: the first finds each tensor's least and largest value,
the second counts its values between them. Nothing of a batch is stored, so memory is bounded by one
batch whatever the number of texts. Batches have the lengths that texts have; padding is left out,
for what a model computes there is never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.core.progress import track
from bertender.measure.accuracy import text_lengths, word_count
from bertender.problems import SINGLE_LABEL, ProblemType
from bertender.text.batch import Batch, Encode
from bertender.text.batching import length_buckets
from bertender.text.example import Example
from quantize.calibrators import Histogram
from quantize.inner_tensors import open_watched

__all__ = ["Batches", "histograms", "observed"]

FloatArray = npt.NDArray[np.float32]
BINS = 2048
TOKENS_PER_BATCH = 2048


@dataclass(frozen=True)
class Batches:
    """Texts as batches of like length, which can be iterated over more than once."""

    encode: Encode
    examples: Sequence[Example]
    description: str = "calibrate"
    problem: ProblemType[Any] = SINGLE_LABEL

    def __post_init__(self) -> None:
        if not self.examples:
            raise DataError(
                "no texts to calibrate on, and at least 1 is needed: the task has no training "
                "examples. Give a task with some, by --task or --train."
            )

    def __iter__(self) -> Iterator[Batch]:
        buckets = length_buckets(text_lengths(self.encode, self.examples), TOKENS_PER_BATCH)
        for bucket in track(buckets, self.description, len(buckets)):
            yield self.encode([self.examples[row] for row in bucket])

    def of_two_lengths(self) -> Batch:
        """Return the longest text and its first word: batches are of like lengths otherwise."""
        longest = max(self.examples, key=word_count)
        shortest, _ = self.problem.edge_examples([longest], 1)
        return self.encode([longest, shortest])


def histograms(graph: Path, tensors: Sequence[str], batches: Batches) -> dict[str, Histogram]:
    """Count the values of some tensors of a graph, without padding.

    Args:
        graph: a float graph.
        tensors: names of activations; those of (batch, seq, ...) are read where text is.
        batches: the texts to run.
    """
    lows, highs = dict.fromkeys(tensors, np.inf), dict.fromkeys(tensors, -np.inf)
    for values in observed(graph, tensors, batches):
        for name, array in values.items():
            lows[name] = min(lows[name], float(array.min()))
            highs[name] = max(highs[name], float(array.max()))
    counts = {name: np.zeros(BINS, dtype=np.int64) for name in tensors}
    for values in observed(graph, tensors, batches):
        for name, array in values.items():
            counts[name] += np.histogram(array, BINS, (lows[name], highs[name]))[0]
    return {name: Histogram(lows[name], highs[name], counts[name]) for name in tensors}


def observed(
    graph: Path, tensors: Sequence[str], batches: Batches
) -> Iterator[Mapping[str, FloatArray]]:
    """Yield, for each batch, the values of some tensors where there is text."""
    names = list(dict.fromkeys(tensors))
    with TemporaryDirectory() as folder:
        session = open_watched(graph, names, Path(folder))
        inputs = [node.name for node in session.get_inputs()]
        for batch in batches:
            arrays = session.run(names, {name: batch.arrays[name] for name in inputs})
            real = batch.arrays["attention_mask"].astype(bool)
            yield {
                name: array[real] if _is_of_tokens(array, real) else array.reshape(-1)
                for name, array in zip(names, arrays, strict=True)
            }


def _is_of_tokens(array: FloatArray, real: npt.NDArray[np.bool_]) -> bool:
    """Distinguish (batch, seq, ...) from a pooled (batch, hidden)."""
    return array.ndim > real.ndim and array.shape[:2] == real.shape
