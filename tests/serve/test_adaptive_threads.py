"""Buckets on one thread or on all: which is opened, which runs, and the same predictions."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.models.classifier import Classifier
from bertender.models.onnx_session import ONNX_DATA_NAME, OnnxPredictor
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch, Example
from serve.backend import opening
from serve.backend.batches import BucketedClassifier
from serve.backend.opening import (
    TOKENS_FOR_ALL_THREADS,
    AdaptiveThreads,
    adaptive,
    open_artifact,
    open_served_model,
    warm_up,
)
from serve.config import BackendParameters
from tests.fake_predictor import FakePredictor
from tests.serve.asking import logits_of
from tests.toys import tiny_tokenizer


class Noting:
    """A predictor that notes the buckets that it runs."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.shapes: list[tuple[int, ...]] = []

    def logits(self, batch: Batch) -> np.ndarray:
        self.shapes.append(batch.arrays["attention_mask"].shape)
        return np.full((len(batch), 2), self.threads, np.float32)


def single_label(batch: Batch) -> np.ndarray:
    return np.zeros((len(batch), 2), np.float32)


def bucket(rows: int, tokens: int) -> Batch:
    return Batch((("a",),) * rows, {"attention_mask": np.ones((rows, tokens), np.int64)})


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    return tmp_path / "model.onnx"


def test_small_buckets_have_one_thread_and_larger_ones_all(graph: Path) -> None:
    predictor = adaptive(Noting, graph, threads=4)
    for shape in ((1, TOKENS_FOR_ALL_THREADS - 1), (2, TOKENS_FOR_ALL_THREADS // 2)):
        small = np.prod(shape) < TOKENS_FOR_ALL_THREADS
        assert (predictor.logits(bucket(*shape)) == (1 if small else 4)).all()


@pytest.mark.parametrize(
    ("size_bytes", "tokens"),
    [(2**20, 64), (24 * 2**20, 64), (48 * 2**20, 32), (110 * 10**6, 14)],
)
def test_a_larger_model_has_all_threads_from_fewer_tokens_on(
    size_bytes: int, tokens: int, graph: Path
) -> None:
    """A BERT-base in int8 has 110 MB, and takes 10 GOP for 60 tokens."""
    os.truncate(graph, size_bytes)
    predictor = adaptive(Noting, graph, threads=4)
    assert (predictor.logits(bucket(1, tokens - 1)) == 1).all()
    assert (predictor.logits(bucket(1, tokens)) == 4).all()


def test_both_numbers_of_threads_are_warm() -> None:
    one, several = FakePredictor(single_label), FakePredictor(single_label)
    encode = SINGLE_LABEL.encoder(tiny_tokenizer(), 20)
    predictor = AdaptiveThreads(one, several, tokens_for_all=16)
    warm_up(BucketedClassifier(encode, predictor), 1, most_texts=64, tokens_per_bucket=64)
    largest = {each.arrays["attention_mask"].shape for each in one.batches}
    assert (1, 15) in largest and several.batches


def test_one_thread_is_opened_once(graph: Path) -> None:
    assert isinstance(adaptive(Noting, graph, threads=1), Noting)


@pytest.mark.parametrize("name", ["model.onnx", ONNX_DATA_NAME])
def test_a_large_graph_is_opened_once(
    name: str, graph: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "MOST_BYTES_TWICE", 99)
    assert isinstance(adaptive(Noting, graph, threads=2), AdaptiveThreads)
    graph.with_name(name).write_bytes(b"w" * 100)
    predictor = adaptive(Noting, graph, threads=2)
    assert isinstance(predictor, Noting) and predictor.threads == 2


@pytest.mark.parametrize("least", [2, 40, 10**6])
def test_predictions_do_not_depend_on_it(
    least: int,
    onnx_artifact: Artifact,
    local: Classifier,
    texts: tuple[Example, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening, "TOKENS_FOR_ALL_THREADS", least)
    monkeypatch.setattr(opening, "share_of_cores", lambda runs: 2)
    parameters = BackendParameters(tokens_per_bucket=256, threads=0, max_queue_texts=len(texts))
    model = open_served_model(onnx_artifact.path, parameters, max_batch_size=64)
    assert isinstance(model.classifier.predictor, AdaptiveThreads)
    np.testing.assert_allclose(logits_of(model, texts), local.logits(texts), atol=1e-5)
    model.close()


def test_an_explicit_number_of_threads_holds_for_every_bucket(onnx_artifact: Artifact) -> None:
    parameters = BackendParameters(tokens_per_bucket=256, threads=2)
    predictor = open_artifact(onnx_artifact, parameters, threads=2).predictor
    assert isinstance(predictor, OnnxPredictor)
    assert predictor.session.get_session_options().intra_op_num_threads == 2
