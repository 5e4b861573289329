"""Bucketing loses nothing, keeps to its budget, and changes no answer."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier
from bertender.text.batch import Batch, Example, length_buckets
from serve.backend.batches import BucketedClassifier
from serve.backend.fair_queue import Refusal
from serve.backend.opening import open_served_model
from serve.config import BackendParameters
from tests.fake_predictor import FakePredictor
from tests.serve.asking import ask, logits_of, serving, submit

LABELS = ("a", "b", "c")
LENGTHS = st.lists(st.integers(1, 600), max_size=80)


@given(lengths=LENGTHS, budget=st.integers(1, 2000))
def test_every_example_is_in_one_bucket_within_the_budget(lengths: list[int], budget: int) -> None:
    buckets = length_buckets(lengths, budget)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(lengths)))
    for bucket in buckets:
        longest = max(lengths[index] for index in bucket)
        assert len(bucket) * longest <= budget or len(bucket) == 1


@given(lengths=LENGTHS, budget=st.integers(1, 2000))
def test_buckets_run_from_short_to_long(lengths: list[int], budget: int) -> None:
    flat = [lengths[index] for bucket in length_buckets(lengths, budget) for index in bucket]
    assert flat == sorted(lengths)


def test_short_texts_are_not_split_needlessly() -> None:
    assert [len(bucket) for bucket in length_buckets([4] * 10, 16)] == [4, 4, 2]


@pytest.mark.parametrize("tokens_per_bucket", [1, 40, 100_000])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("at_once", [1, 3])
def test_any_order_of_mixed_lengths_answers_as_one_by_one(
    onnx_artifact: Artifact,
    local: Classifier,
    texts: tuple[Example, ...],
    tokens_per_bucket: int,
    seed: int,
    at_once: int,
) -> None:
    shuffled = random.Random(seed).sample(texts, 60)
    parameters = BackendParameters(
        tokens_per_bucket=tokens_per_bucket, threads=1, concurrent_buckets=at_once
    )
    model = open_served_model(onnx_artifact.path, parameters, max_batch_size=64)
    answers = logits_of(model, shuffled)
    model.close()
    one_by_one = np.concatenate([local.logits([example]) for example in shuffled])
    np.testing.assert_allclose(answers, one_by_one, atol=1e-5)


def test_each_bucket_is_padded_to_its_own_longest_only() -> None:
    predictor = FakePredictor(lambda batch: np.zeros((len(batch), 3), np.float32))
    classifier = BucketedClassifier(one_token_a_letter, predictor)
    with serving(classifier, LABELS, tokens_per_bucket=12) as model:
        ask(model, [("aaaaaaaaa",), ("a",), ("aaa",), ("aa",)])
    assert [batch.arrays["input_ids"].shape for batch in predictor.batches] == [(3, 3), (1, 9)]
    assert predictor.batches[0].examples == (("a",), ("aa",), ("aaa",))


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_cut_on_either_side(side: str) -> None:
    predictor = FakePredictor(
        lambda batch: batch.arrays["input_ids"].sum(axis=1, keepdims=True).astype(np.float32)
    )
    classifier = BucketedClassifier(lambda examples: one_token_a_letter(examples, side), predictor)
    with serving(classifier, ["one"], tokens_per_bucket=4) as model:
        assert logits_of(model, [("aaaa",), ("a",), ("aa",)]).tolist() == [[4.0], [1.0], [2.0]]
    assert all(batch.arrays["attention_mask"].any(axis=0).all() for batch in predictor.batches)


@pytest.mark.parametrize("at_once", [1, 2, 8])
def test_buckets_run_at_once_and_no_more_than_allowed(at_once: int) -> None:
    lock, running, most = threading.Lock(), [0], [0]
    together = threading.Barrier(at_once)

    def run(batch: Batch) -> np.ndarray:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        together.wait(10)  # none goes on before so many are there
        with lock:
            running[0] -= 1
        return np.zeros((len(batch), 3), np.float32)

    classifier = BucketedClassifier(one_token_a_letter, FakePredictor(run))
    with serving(classifier, LABELS, at_once, tokens_per_bucket=1) as model:
        assert logits_of(model, [("a",)] * (3 * at_once)).shape == (3 * at_once, 3)
    assert most == [at_once]


def test_a_small_bucket_runs_beside_a_long_text() -> None:
    entered, release = threading.Event(), threading.Event()

    def run(batch: Batch) -> np.ndarray:
        if ("a" * 9,) in batch.examples:
            entered.set()
            assert release.wait(10)
        return np.zeros((len(batch), 3), np.float32)

    classifier = BucketedClassifier(one_token_a_letter, FakePredictor(run))
    with serving(classifier, LABELS, small_tokens=8, tokens_per_bucket=8) as model:
        large = submit(model, [("a" * 9,)])
        assert entered.wait(10)
        ask(model, [("a",)], [("aa",)])
        assert not large.done()
        release.set()
        assert not isinstance(large.result(10), Refusal)


@pytest.mark.parametrize("at_once", [1, 3])
def test_a_bucket_that_fails_fails_its_request_and_no_other(at_once: int) -> None:
    def run(batch: Batch) -> np.ndarray:
        if ("aaa",) in batch.examples:
            raise ValueError("three letters")
        return np.zeros((len(batch), 3), np.float32)

    classifier = BucketedClassifier(one_token_a_letter, FakePredictor(run))
    with serving(classifier, LABELS, at_once, tokens_per_bucket=4) as model:
        bad, good = ask(model, [("a" * each,) for each in (1, 2, 3, 4, 5)], [("aaaa",), ("a",)])
    assert isinstance(bad, Refusal) and "three letters" in bad.reason
    assert not isinstance(good, Refusal)


def one_token_a_letter(examples: object, side: str = "right") -> Batch:
    """Encode each letter of a text as a 1, padded with 0."""
    rows = [[1] * len(text) for (text,) in examples]  # type: ignore[attr-defined]
    longest = max(map(len, rows))
    fill = {"right": lambda row, pad: row + pad, "left": lambda row, pad: pad + row}[side]
    ids = np.array([fill(row, [0] * (longest - len(row))) for row in rows])
    return Batch(tuple(examples), {"input_ids": ids, "attention_mask": ids})  # type: ignore[arg-type]
