"""Batches padded to few shapes: every runtime predicts as it does without, and sees few of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.models.few_shapes import FewShapes, rows_of_shape, tokens_of_shape
from bertender.models.opening import open_classifier
from bertender.models.predictor import FakePredictor
from bertender.tasks.task import Task
from bertender.text.batch import Batch
from tests.runtimes import EVERY_RUNTIME


def batch_of(rows: int, tokens: int) -> Batch:
    ids = np.arange(1, rows * tokens + 1).reshape(rows, tokens)
    return Batch((("a",),) * rows, {"input_ids": ids, "attention_mask": np.ones_like(ids)})


def sums(batch: Batch) -> np.ndarray[Any, Any]:
    """Logits (batch, 1) that read what the mask shows."""
    shown = batch.arrays["input_ids"] * batch.arrays["attention_mask"]
    return shown.sum(axis=1, keepdims=True).astype(np.float32)


def test_rows_and_tokens_of_shapes() -> None:
    assert [rows_of_shape(rows) for rows in range(1, 10)] == [1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert all(rows <= rows_of_shape(rows) < 1.5 * rows for rows in range(1, 300))
    assert [tokens_of_shape(tokens, 20) for tokens in (1, 8, 9, 17, 20)] == [8, 8, 16, 20, 20]
    assert tokens_of_shape(30, 20) == 30


@pytest.mark.parametrize(("rows", "tokens"), [(1, 3), (5, 9), (7, 16), (8, 8)])
def test_logits_are_those_of_the_batch_alone(rows: int, tokens: int) -> None:
    plain, batch = FakePredictor(sums), batch_of(rows, tokens)
    np.testing.assert_array_equal(FewShapes(plain, 512).logits(batch), sums(batch))
    (seen,) = plain.batches
    assert seen.arrays["input_ids"].shape == (rows_of_shape(rows), tokens_of_shape(tokens, 512))
    assert seen.arrays["attention_mask"].any(axis=1).all(), "a row of padding alone"


def test_logits_of_tokens_are_cut_to_the_batch() -> None:
    def of_tokens(batch: Batch) -> np.ndarray[Any, Any]:
        return batch.arrays["input_ids"][:, :, None].astype(np.float32)

    batch = batch_of(3, 5)
    logits = FewShapes(FakePredictor(of_tokens), 512).logits(batch)
    np.testing.assert_array_equal(logits, of_tokens(batch))


def test_many_batches_have_few_shapes() -> None:
    plain = FakePredictor(sums)
    few = FewShapes(plain, 60)
    for rows in range(1, 17):
        for tokens in range(3, 61):
            few.logits(batch_of(rows, tokens))
    shapes = {each.arrays["input_ids"].shape for each in plain.batches}
    assert len(shapes) == 8 * 8
    assert max(tokens for _, tokens in shapes) == 60


@pytest.mark.parametrize("runtime", EVERY_RUNTIME)
def test_a_runtime_predicts_as_without(runtime: str, exported: Artifact, task: Task) -> None:
    opened = open_classifier(exported, threads=1, runtime=runtime)
    batch = opened.encode(task.dev.examples[:5])
    logits = FewShapes(opened.predictor, 512).logits(batch)
    close = 0.05 if runtime == "openvino-bf16" else 1e-5
    np.testing.assert_allclose(logits, opened.predictor.logits(batch), atol=close)
