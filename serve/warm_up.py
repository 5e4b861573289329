"""Runs of a model before its first request.

A runtime reserves memory and prepares itself when it first sees an input of some size. Here that
happens at the start, at sizes over all buckets, and not while a request waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

import numpy as np

from bertender.core.errors import ModelError
from bertender.text.batch import Batch
from serve.adaptive_threads import AdaptiveThreads
from serve.bucketing import BucketedClassifier

__all__ = ["bucket_shapes", "warm_up"]

logger = logging.getLogger(__name__)

SHORTEST = 8
LIMIT_S = 1.0
"""A slow model gains the least of this, and would take the longest."""


def warm_up(
    classifier: BucketedClassifier,
    text_columns: int,
    most_texts: int,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Classify one text, then run a full bucket of each length while that takes under a second.

    Where small buckets have a thread of their own, the largest of these comes first.

    Where buckets have few shapes, the others follow in what is left of the second.
    Where several buckets run at once, so many of them do: each reserves memory of its own.

    Args:
        classifier: the model.
        text_columns: texts of an example.
        most_texts: of a batch.
        clock: returns seconds.

    Raises:
        ModelError: the model fails at a length that its tokenizer allows.
    """
    start = clock()
    problem, texts = classifier.problem, ("warm up",) * text_columns
    example = problem.endpoint.to_example(texts)
    classifier.outputs([example])
    edge = problem.edge_examples([example], classifier.longest_input)
    long = classifier.encode([edge[1]])
    longest = long.arrays["attention_mask"].shape[1]
    for rows, length in _shapes(classifier, longest, most_texts):
        if clock() - start > LIMIT_S:
            logger.info("no time for %d texts of %d tokens, and what follows", rows, length)
            return
        try:
            full = [_cut(long, rows, length)] * classifier.runner.at_once
            classifier.runner.run(classifier.predictor.logits, full)
        except Exception as error:  # its exception classes share no public base
            raise ModelError(
                f"the model fails at {rows} texts of {length} tokens, though its tokenizer allows "
                f"{longest}: {error}. Set a shorter --max-length, or export it again."
            ) from None


def _shapes(
    classifier: BucketedClassifier, longest: int, most_texts: int
) -> Iterator[tuple[int, int]]:
    """Yield full buckets, which take the most memory, and then what else buckets are padded to."""
    if isinstance(adaptive := classifier.predictor, AdaptiveThreads):
        yield 1, min(adaptive.tokens_for_all - 1, longest)
    yield from bucket_shapes(classifier.tokens_per_bucket, longest, most_texts)
    yield from classifier.shapes.every(classifier.tokens_per_bucket, most_texts)


def bucket_shapes(
    tokens_per_bucket: int, longest: int, most_texts: int
) -> Iterator[tuple[int, int]]:
    """Yield texts and tokens of a full bucket, at lengths that double up to the longest.

    Longer inputs than a bucket holds run alone; they take the most memory, and may never come.
    """
    length, longest = SHORTEST, min(longest, tokens_per_bucket)
    while length < longest:
        yield _texts(tokens_per_bucket, length, most_texts), length
        length *= 2
    yield _texts(tokens_per_bucket, longest, most_texts), longest


def _texts(tokens_per_bucket: int, length: int, most_texts: int) -> int:
    return max(1, min(most_texts, tokens_per_bucket // length))


def _cut(batch: Batch, rows: int, length: int) -> Batch:
    """Return the first tokens of a batch's one example, so many times."""
    arrays = {
        name: np.repeat(array[:, :length], rows, axis=0) for name, array in batch.arrays.items()
    }
    return Batch(batch.examples * rows, arrays)
