"""A model has run at the sizes of its buckets before it gets a request."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from bertender.core.errors import ModelError
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.text.batch import Batch
from serve.backend.batches import BucketedClassifier
from serve.backend.opening import bucket_shapes, warm_up
from tests.fake_predictor import FakePredictor
from tests.toys import tiny_tokenizer

LONGEST = 20


def stopped_clock() -> float:
    """A clock that stands."""
    return 0.0


def compute(batch: Batch) -> np.ndarray:
    return np.zeros((*batch.arrays["input_ids"].shape, 3), np.float32)


def classifier_of(predictor: FakePredictor) -> BucketedClassifier:
    encode = TOKEN_CLASSIFICATION.encoder(tiny_tokenizer(), LONGEST)
    return BucketedClassifier(encode, predictor, TOKEN_CLASSIFICATION)


def shapes_of(predictor: FakePredictor) -> list[tuple[int, ...]]:
    """Return what was run after the first text."""
    return [batch.arrays["attention_mask"].shape for batch in predictor.batches[1:]]


@pytest.mark.parametrize(
    ("budget", "longest", "most_texts", "expected"),
    [
        (64, 20, 64, [(8, 8), (4, 16), (3, 20)]),
        (64, 32, 2, [(2, 8), (2, 16), (2, 32)]),
        (16, 32, 64, [(2, 8), (1, 16)]),
        (20, 32, 64, [(2, 8), (1, 16), (1, 20)]),
        (256, 5, 64, [(51, 5)]),
    ],
)
def test_full_buckets_of_all_lengths(
    budget: int, longest: int, most_texts: int, expected: list[tuple[int, int]]
) -> None:
    assert list(bucket_shapes(budget, longest, most_texts)) == expected


def test_each_is_run() -> None:
    predictor = FakePredictor(compute)
    warm_up(classifier_of(predictor), 1, most_texts=64, tokens_per_bucket=64, clock=stopped_clock)
    assert shapes_of(predictor) == [(8, 8), (4, 16), (3, LONGEST)]
    assert all(batch.arrays["attention_mask"].all() for batch in predictor.batches)


def test_as_many_are_run_at_once_as_later() -> None:
    predictor = FakePredictor(compute)
    classifier = classifier_of(predictor)
    warm_up(classifier, 1, most_texts=64, tokens_per_bucket=64, lanes=2, clock=stopped_clock)
    assert sorted(shapes_of(predictor)) == sorted(2 * [(8, 8), (4, 16), (3, LONGEST)])


@pytest.mark.parametrize("columns", [1, 2])
def test_pairs_too(columns: int) -> None:
    predictor = FakePredictor(lambda batch: np.zeros((len(batch), 3), np.float32))
    encode = SINGLE_LABEL.encoder(tiny_tokenizer(), LONGEST)
    classifier = BucketedClassifier(encode, predictor)
    warm_up(classifier, columns, most_texts=64, tokens_per_bucket=64, clock=stopped_clock)
    assert shapes_of(predictor)[-1] == (3, LONGEST)
    assert predictor.batches[-1].arrays["token_type_ids"].max() == columns - 1


def test_a_slow_model_is_ready_soon() -> None:
    predictor = FakePredictor(compute)
    seconds: Iterator[float] = iter([0.0, 0.9, 1.1])
    warm_up(classifier_of(predictor), 1, 64, 64, clock=lambda: next(seconds))
    assert shapes_of(predictor) == [(8, 8)]


def test_a_length_at_which_the_model_fails_is_named() -> None:
    def short_positions(batch: Batch) -> np.ndarray:
        if batch.arrays["input_ids"].shape[1] > 16:
            raise RuntimeError("index 16 is out of bounds")
        return compute(batch)

    with pytest.raises(ModelError, match=r"3 texts of 20 tokens.* 20: index 16 .*--max-length"):
        warm_up(classifier_of(FakePredictor(short_positions)), 1, 64, 64, clock=stopped_clock)
