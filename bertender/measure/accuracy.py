"""A classifier's answers over a whole split, and the score of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError, ModelError
from bertender.core.progress import progress_bar
from bertender.metrics.scores import Score, score
from bertender.models.predictor import Classifier
from bertender.tasks.task import Split
from bertender.text.batch import Batch, Encode
from bertender.text.batching import length_buckets
from bertender.text.example import Example

__all__ = ["TOKENS_PER_BATCH", "evaluate", "predict", "text_lengths", "word_count"]

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

TOKENS_PER_BATCH = 4096
EXAMPLES_PER_ENCODING = 64
"""Small, so that one long text pads few others while lengths are counted."""


def predict(
    classifier: Classifier,
    examples: Sequence[Example],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> FloatArray:
    """Return the logits (examples, labels), in the order of the examples.

    Inside, examples are sorted by length into batches of at most `tokens_per_batch` tokens,
    padding included, longest first, so that a machine with too little memory fails at once.

    Raises:
        DataError: there are no examples.
        ModelError: the model answers a batch with another number of rows than it has.
    """
    if not examples:
        raise DataError("no examples to predict: the split is empty. Give at least one example.")
    buckets = length_buckets(text_lengths(classifier.encode, examples), tokens_per_batch)
    answers: list[FloatArray] = []
    with progress_bar(f"predict {classifier.name}", len(examples)) as bar:
        for bucket in reversed(buckets):
            answers.append(_answer(classifier, [examples[row] for row in bucket]))
            bar.advance(len(bucket))
    logits = np.concatenate(answers)
    ordered = np.empty_like(logits)
    ordered[np.concatenate(buckets[::-1])] = logits
    return ordered


def evaluate(
    classifier: Classifier,
    split: Split,
    metric: str,
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> tuple[Score, IntArray]:
    """Return the classifier's score on a split, and its predictions (rows,).

    Raises:
        ModelError: a logit is NaN or infinite, so there is no prediction to score.
    """
    logits = predict(classifier, split.examples, tokens_per_batch=tokens_per_batch)
    _refuse_non_finite(classifier, split.examples, logits)
    predictions = logits.argmax(axis=1)
    labels = len(classifier.labels)
    return score(metric, split.label_ids, predictions, label_count=labels), predictions


def text_lengths(encode: Encode, examples: Sequence[Example]) -> list[int]:
    """Return each example's length: in tokens, or in words where the model reads the text."""
    return [
        length
        for start in range(0, len(examples), EXAMPLES_PER_ENCODING)
        for length in _lengths(encode(examples[start : start + EXAMPLES_PER_ENCODING]))
    ]


def word_count(example: Example) -> int:
    """Return the number of words, split at white space, in all texts of an example."""
    return sum(len(text.split()) for text in example)


def _lengths(batch: Batch) -> Iterator[int]:
    mask = batch.arrays.get("attention_mask")
    if mask is None:
        return map(word_count, batch.examples)
    return iter(mask.sum(axis=1).tolist())


def _answer(classifier: Classifier, examples: Sequence[Example]) -> FloatArray:
    logits = classifier.logits(examples)
    if logits.ndim != 2 or len(logits) != len(examples):
        raise ModelError(
            f"{classifier.name} answered {len(examples)} examples with logits of shape "
            f"{logits.shape}; it must be ({len(examples)}, {len(classifier.labels)}). "
            "Export the model again, with a dynamic batch axis."
        )
    return logits


def _refuse_non_finite(
    classifier: Classifier, examples: Sequence[Example], logits: FloatArray
) -> None:
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1))
    if len(broken):
        raise ModelError(
            f"{classifier.name} answers {len(broken)} of {len(logits)} examples with NaN or "
            f"infinite logits, first {examples[broken[0]]!r}. Train or export the model again."
        )
