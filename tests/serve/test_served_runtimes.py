"""SERVED_RUNTIMES: every way to run buckets."""

from __future__ import annotations

import threading

import numpy as np

from bertender.models.runtimes import RUNTIMES
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch
from serve.backend.batches import BucketedClassifier
from serve.backend.fair_queue import Refusal
from serve.config import SERVED_RUNTIMES
from tests.fake_predictor import FakePredictor
from tests.serve.asking import ask, serving
from tests.serve.layouts import ENCODER_RUNTIME
from tests.toys import tiny_tokenizer


def test_every_runtime_serves() -> None:
    in_process = {name for name, row in SERVED_RUNTIMES.items() if row.in_process == name}
    assert in_process == RUNTIMES.keys()
    others = SERVED_RUNTIMES.keys() - in_process
    assert others == {ENCODER_RUNTIME}
    assert all(SERVED_RUNTIMES[name].triton_backend for name in others)


def test_another_model_has_the_next_bucket_while_it_runs_one() -> None:
    row = SERVED_RUNTIMES[ENCODER_RUNTIME]
    together = threading.Barrier(row.buckets_at_once, timeout=10)

    def run(batch: Batch) -> np.ndarray:
        together.wait()
        return np.zeros((len(batch), 2), np.float32)

    encode = SINGLE_LABEL.encoder(tiny_tokenizer())
    classifier = BucketedClassifier(encode, FakePredictor(run))
    with serving(classifier, ["a", "b"], row.buckets_at_once, tokens_per_bucket=1) as model:
        assert not isinstance(ask(model, [("pear",)] * row.buckets_at_once)[0], Refusal)
