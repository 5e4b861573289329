"""Classifiers that compute nothing: their logits come from a function of the texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bertender.models.classifier import Classifier
from bertender.text.batch import Batch, Encode, Example, keep_text
from tests.fake_predictor import FakePredictor

LABELS = ("no", "yes")
EXAMPLES = tuple(
    (" ".join(f"word{(row * 7 + place) % 50}" for place in range(1 + row % 12)),)
    for row in range(120)
)


def logits_of(examples: Sequence[Example]) -> np.ndarray:
    """Logits (batch, 2) from -4 to 4 that depend on each text alone."""
    scores = [((sum(map(ord, example[0])) % 17) - 8) / 2 + 0.1 for example in examples]
    return np.array([[-score, score] for score in scores], dtype=np.float32)


def honest(batch: Batch) -> np.ndarray:
    return logits_of(batch.examples)


def fake_classifier(
    name: str = "fake",
    answer: Callable[[Batch], np.ndarray] = honest,
    labels: tuple[str, ...] = LABELS,
    encode: Encode = keep_text,
) -> Classifier:
    return Classifier(name, labels, encode, FakePredictor(answer), parameters=0)


def encode_words(examples: Sequence[Example]) -> Batch:
    """One token a word, padded with 0 to the longest, as a tokenizer does."""
    lengths = [len(example[0].split()) for example in examples]
    mask = np.array([[1] * count + [0] * (max(lengths) - count) for count in lengths])
    return Batch(tuple(examples), {"input_ids": mask * 5, "attention_mask": mask})
