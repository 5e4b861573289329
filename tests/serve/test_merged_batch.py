"""The requests of a merged batch get what each would get alone, and scores are computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

import numpy as np
import pytest

from bertender.problems.problem import Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.problems.token_classification import TOKEN_CLASSIFICATION
from bertender.text.batch import Batch, Example
from serve.backend.batches import BucketedClassifier, Refusal, Request, predictions
from tests.fake_predictor import FakePredictor
from tests.toys import tiny_tokenizer

LABELS = np.array([b"O", b"B-X", b"I-X"], np.object_)
MAX_LENGTH = 9

REQUESTS: Mapping[str, tuple[Problem[Any], Sequence[Sequence[Example]]]] = {
    "texts": (
        SINGLE_LABEL,
        [[("saw",), ("apple plum pear",)], [("saw " * 40,)], [("hammer " * 3,)], [("plum",)]],
    ),
    "sentences": (
        TOKEN_CLASSIFICATION,
        [[("saw",), ("apple", "plum")], [("saw",) * 40], [("pear",) * 6], [("plum",)]],
    ),
}
"""Requests of each problem type; the second one's text is too long."""


def classifier_of(problem: Problem[Any]) -> BucketedClassifier:
    """Return a model whose logits follow from its tokens, whatever else is in the batch."""

    def compute(batch: Batch) -> np.ndarray:
        ids = batch.arrays["input_ids"][..., None] * np.array([0.1, 0.2, -0.1], np.float32)
        per_text = (ids * batch.arrays["attention_mask"][..., None]).sum(axis=1)
        return np.asarray(ids if problem is TOKEN_CLASSIFICATION else per_text, np.float32)

    encode = problem.encoder(tiny_tokenizer(), MAX_LENGTH)
    return BucketedClassifier(encode, FakePredictor(compute), len(LABELS), 16, problem)


@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("name", REQUESTS)
def test_each_request_has_what_it_would_have_alone(name: str, truncate: bool) -> None:
    problem, requests = REQUESTS[name]
    classifier = classifier_of(problem)
    asked = [Request(tuple(examples), truncate) for examples in requests]
    together = predictions(classifier, asked, LABELS)
    alone = [own for each in asked for own in predictions(classifier, [each], LABELS)]
    for mine, other in zip(together, alone, strict=True):
        assert type(mine) is type(other)
        if not isinstance(mine, Refusal) and not isinstance(other, Refusal):
            truncated = {"TRUNCATED"} if truncate else set()
            assert {*mine} == {"LABEL", "SCORE", "LOGITS"} | truncated == {*other}
            for tensor, array in mine.items():
                np.testing.assert_array_equal(array, other[tensor], err_msg=tensor)
                assert array.flags.c_contiguous
    refused = [isinstance(each, Refusal) for each in together]
    assert refused == [False, not truncate, False, False]


@pytest.mark.parametrize("name", REQUESTS)
def test_scores_and_labels_are_computed_once_a_batch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, requests = REQUESTS[name]
    batches: list[int] = []

    def response(outputs: Any, examples: Sequence[Example], labels: Any) -> dict[str, Any]:
        batches.append(len(examples))
        return problem.response(outputs, examples, labels)

    classifier = classifier_of(problem)
    classifier.problem = copy(problem)
    monkeypatch.setattr(classifier.problem, "response", response)
    predictions(classifier, [Request(tuple(examples)) for examples in requests], LABELS)
    assert batches == [4], "all texts but the one that is refused"


def test_requests_that_are_all_refused_run_nothing() -> None:
    classifier = classifier_of(SINGLE_LABEL)
    asked = [Request((("saw " * 40,),))] * 2
    results = predictions(classifier, asked, LABELS)
    assert [isinstance(each, Refusal) for each in results] == [True, True]
    assert isinstance(classifier.predictor, FakePredictor) and not classifier.predictor.batches
