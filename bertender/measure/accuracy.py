"""A classifier's predictions over a whole split, and their score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError, ModelError
from bertender.core.progress import progress_bar
from bertender.metrics.scores import Score, score
from bertender.models.predictor import Classifier
from bertender.problems import Outputs
from bertender.tasks.task import Split
from bertender.text.batch import Batch, Encode
from bertender.text.batching import length_buckets
from bertender.text.example import Example

__all__ = [
    "TOKENS_PER_BATCH",
    "evaluate",
    "predict",
    "predict_outputs",
    "text_lengths",
    "word_count",
]

FloatArray = npt.NDArray[np.float32]

TOKENS_PER_BATCH = 4096
EXAMPLES_PER_ENCODING = 64
"""Small, so that one long text pads few others while lengths are counted."""


def predict(
    classifier: Classifier,
    examples: Sequence[Example],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> FloatArray:
    """Return the logits (examples, labels), in the order of the examples; of a model that labels
    words, (words, labels). Arguments and errors are those of `predict_outputs`.
    """
    outputs = predict_outputs(classifier, examples, tokens_per_batch=tokens_per_batch)
    return np.concatenate([each.logits for each in outputs])


def predict_outputs(
    classifier: Classifier,
    examples: Sequence[Example],
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> list[Outputs]:
    """Return the outputs of each example, in their order.

    Inside, examples are sorted by length into batches of at most `tokens_per_batch` tokens,
    padding included, longest first, so that a machine with too little memory fails at once.

    Raises:
        DataError: there are no examples.
        ModelError: the model returns another number of rows than a batch has.
    """
    if not examples:
        raise DataError("no examples to predict: the split is empty. Give at least one example.")
    buckets = length_buckets(text_lengths(classifier.encode, examples), tokens_per_batch)
    outputs: dict[int, Outputs] = {}
    with progress_bar(f"predict {classifier.name}", len(examples), "texts") as bar:
        for bucket in reversed(buckets):
            outputs.update(
                zip(bucket, classifier.outputs([examples[row] for row in bucket]), strict=True)
            )
            bar.advance(len(bucket))
    return [outputs[row] for row in range(len(examples))]


def evaluate(
    classifier: Classifier,
    split: Split,
    metric: str,
    *,
    tokens_per_batch: int = TOKENS_PER_BATCH,
) -> tuple[Score, Any]:
    """Return the classifier's score on a split, and its predictions: (rows,), or tags by sentence.

    Raises:
        ModelError: a logit is NaN or infinite, so there is no prediction to score.
    """
    outputs = predict_outputs(classifier, split.examples, tokens_per_batch=tokens_per_batch)
    _check_finite(classifier, split.examples, outputs)
    problem, labels = classifier.problem, classifier.labels
    decoded = [
        problem.decode(problem.choose(each.logits), each.places, example)
        for each, example in zip(outputs, split.examples, strict=True)
    ]
    predictions = problem.gather(decoded)
    measured = score(metric, split.label_ids, predictions, label_count=len(labels), labels=labels)
    return measured, predictions


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


def _check_finite(
    classifier: Classifier, examples: Sequence[Example], outputs: Sequence[Outputs]
) -> None:
    broken = [row for row, each in enumerate(outputs) if not np.isfinite(each.logits).all()]
    if broken:
        raise ModelError(
            f"{classifier.name} predicts {len(broken)} of {len(outputs)} examples with NaN or "
            f"infinite logits, first {examples[broken[0]]!r}. Train or export the model again."
        )
