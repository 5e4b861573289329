"""Predicting a split: batches under a budget, order restored, broken models refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from bertender.comparison.accuracy import (
    evaluate,
    evaluate_all,
    predict,
    predict_outputs,
    score_findings,
    text_lengths,
    word_count,
)
from bertender.comparison.drift import observed
from bertender.core.artifact import Artifact
from bertender.core.errors import DataError, ModelError
from bertender.models.classifier import Classifier, open_classifier
from bertender.tasks.task import Split, Task
from bertender.text.batch import Batch
from tests.fake_classifier import EXAMPLES, encode_words, fake_classifier, honest, logits_of
from tests.fake_predictor import FakePredictor


@pytest.mark.parametrize("tokens_per_batch", [1, 30, 10_000])
def test_logits_come_back_in_the_order_of_the_examples(tokens_per_batch: int) -> None:
    classifier = fake_classifier(encode=encode_words)
    logits = predict(classifier, EXAMPLES, tokens_per_batch=tokens_per_batch)
    np.testing.assert_array_equal(logits, logits_of(EXAMPLES))


def test_batches_keep_to_the_budget_and_to_like_lengths() -> None:
    classifier = fake_classifier(encode=encode_words)
    predict(classifier, EXAMPLES, tokens_per_batch=60)
    assert isinstance(classifier.predictor, FakePredictor)
    masks = [batch.arrays["attention_mask"] for batch in classifier.predictor.batches]
    assert sum(map(len, masks)) == len(EXAMPLES)
    assert all(mask.size <= 60 for mask in masks)
    assert len(masks[0]) > 1  # and they are batches, longest first
    assert [mask.shape[1] for mask in masks] == sorted((m.shape[1] for m in masks), reverse=True)
    padding = sum(int((mask == 0).sum()) for mask in masks)
    assert padding < 0.2 * sum(mask.size for mask in masks)


def test_lengths_are_tokens_or_words() -> None:
    examples = [("one two",), ("three",), ("a b c d",)] * 50
    assert text_lengths(encode_words, examples) == [2, 1, 4] * 50
    assert text_lengths(lambda rows: Batch(tuple(rows), {}), examples) == [2, 1, 4] * 50
    assert word_count(("two words", "and three more")) == 5


def test_evaluate_scores_the_predictions() -> None:
    split = Split(EXAMPLES, tuple(logits_of(EXAMPLES).argmax(axis=1).tolist()))
    score, predictions = evaluate(fake_classifier(), split, "accuracy")
    assert (score.value, score.n) == (1.0, len(EXAMPLES))
    assert predictions.tolist() == list(split.label_ids)
    inverted, _ = evaluate(fake_classifier(answer=lambda b: -honest(b)), split, "accuracy")
    assert inverted.value == 0.0


def test_a_recorded_score_names_its_metric_and_texts(teacher: Artifact, task: Task) -> None:
    """A stage may score by another metric than the artifact's task, on fewer texts of another."""
    other = replace(task, name="others", metric="macro_f1", dev=task.dev.first(20))
    found, predictions = evaluate_all(open_classifier(teacher), other.dev, other.metric)
    scores = score_findings(other, found, predictions)
    assert (scores.metric, scores.task, scores.n) == ("macro_f1", "others", 20)


def test_batches_do_not_change_a_real_models_answers(teacher: Artifact, task: Task) -> None:
    classifier = open_classifier(teacher, threads=1)
    one_by_one = np.concatenate([classifier.logits([text]) for text in task.dev.examples])
    logits = predict(classifier, task.dev.examples, tokens_per_batch=200)
    np.testing.assert_allclose(logits, one_by_one, atol=1e-6)


NAN_REFUSED: dict[str, Callable[[Classifier], object]] = {
    "score": lambda model: evaluate(model, Split(EXAMPLES, (0,) * len(EXAMPLES)), "f1"),
    "drift": lambda model: observed(model, EXAMPLES, frozenset()),
    "calibration and teacher outputs": lambda model: predict_outputs(model, EXAMPLES),
}


@pytest.mark.parametrize("use", NAN_REFUSED)
def test_a_model_that_answers_nan_is_refused(use: str) -> None:
    """A p of NaN is below no bound, and a temperature could be fitted."""

    def broken(batch: Batch) -> np.ndarray:
        return np.array(
            [honest(batch)[0] if text != EXAMPLES[7] else [np.nan, 0] for text in batch.examples]
        )

    with pytest.raises(ModelError, match="1 of 120 examples with NaN") as raised:
        NAN_REFUSED[use](fake_classifier(answer=broken))
    assert repr(EXAMPLES[7]) in str(raised.value)


def test_a_model_that_loses_rows_is_refused() -> None:
    with pytest.raises(ModelError, match="must be"):
        predict(fake_classifier(answer=lambda batch: honest(batch)[:1]), EXAMPLES)


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(DataError, match="no examples"):
        predict(fake_classifier(), [])
