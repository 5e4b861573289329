"""Shapes of buckets: predictions are those without padding, and a runtime sees few shapes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task
from bertender.text.batch import Batch, Example
from quantize.config import QuantizeConfig
from quantize.quantizer import quantize
from serve.backend.batches import BucketedClassifier, ServedModel
from serve.backend.fair_queue import OwnShapes, PaddedShapes
from serve.backend.metrics import Tally
from serve.backend.opening import open_artifact
from serve.config import BackendParameters
from tests.fake_predictor import FakePredictor
from tests.runtimes import EVERY_RUNTIME, needs
from tests.serve.asking import ask, logits_of, serving

BUDGET = 256
SHAPES = PaddedShapes(longest_input=60)


def encode(examples: Any) -> Batch:
    """Texts of digits, a token each, below 10."""
    most = max(len(text) for (text,) in examples)
    ids = np.array([[int(digit) for digit in text.ljust(most, "0")] for (text,) in examples])
    mask = np.array([[1] * len(text) + [0] * (most - len(text)) for (text,) in examples])
    return Batch(tuple(examples), {"input_ids": ids, "attention_mask": mask})


def sums(batch: Batch) -> np.ndarray[Any, Any]:
    """Logits (batch, 2) that read what the mask shows."""
    shown = batch.arrays["input_ids"] * batch.arrays["attention_mask"]
    total = shown.sum(axis=1, keepdims=True).astype(np.float32)
    return np.hstack([total, -total])


def texts(seed: int, count: int) -> list[Example]:
    draw = np.random.default_rng(seed)
    return [
        ("".join(draw.choice([*"123456789"], size=draw.integers(1, 61))),) for _ in range(count)
    ]


def served(
    classifier: BucketedClassifier, budget: int = BUDGET
) -> AbstractContextManager[ServedModel]:
    return serving(classifier, ["plus", "minus"], tokens_per_bucket=budget)


def test_rows_and_tokens() -> None:
    assert [SHAPES.rows(texts) for texts in range(1, 10)] == [1, 2, 3, 4, 6, 6, 8, 8, 12]
    assert all(texts <= SHAPES.rows(texts) < 1.5 * texts for texts in range(1, 300))
    assert [SHAPES.tokens(longest) for longest in (1, 8, 9, 57, 60)] == [8, 8, 16, 60, 60]
    assert SHAPES.tokens(70) == 70, "longer than the tokenizer says: as it is"
    own = OwnShapes()
    assert (own.rows(5), own.tokens(9), [*own.every(BUDGET, 8)]) == (5, 9, [])


def test_predictions_are_those_of_own_shapes_and_shapes_are_few() -> None:
    plain, padded = FakePredictor(sums), FakePredictor(sums)
    own = BucketedClassifier(encode, plain)
    few = BucketedClassifier(encode, padded, shapes=SHAPES)
    with served(own) as ours, served(few) as theirs:
        for seed in range(60):
            batch = texts(seed, count=1 + seed % 20)
            np.testing.assert_array_equal(logits_of(theirs, batch), logits_of(ours, batch))
    seen = {each.arrays["input_ids"].shape for each in padded.batches}
    assert seen <= {*SHAPES.every(BUDGET, 24)}
    assert 2 * len(seen) < len({each.arrays["input_ids"].shape for each in plain.batches})


def test_no_bucket_is_above_its_tokens_with_padding() -> None:
    predictor = FakePredictor(sums)
    with served(BucketedClassifier(encode, predictor, shapes=SHAPES)) as few:
        ask(few, [("1" * 25,)] * 10, [("1" * 4,)] * 64)
    assert max(each.arrays["input_ids"].size for each in predictor.batches) <= BUDGET

    alone = FakePredictor(sums)
    with served(BucketedClassifier(encode, alone, shapes=SHAPES), budget=16) as few:
        ask(few, [("1" * 25,)])
    assert [each.arrays["input_ids"].shape for each in alone.batches] == [(1, 32)]


def test_logits_of_tokens_are_cut_to_the_bucket() -> None:
    def of_tokens(batch: Batch) -> np.ndarray[Any, Any]:
        return batch.arrays["input_ids"][:, :, None].astype(np.float32)

    bucket = encode([("12345",), ("67",), ("8",)])
    logits = of_tokens(SHAPES.padded(bucket))
    assert logits.shape == (3, 8, 1)
    np.testing.assert_array_equal(SHAPES.without_padding(logits, bucket), of_tokens(bucket))


def test_padding_is_counted_as_padding() -> None:
    few = BucketedClassifier(encode, FakePredictor(sums), shapes=SHAPES, tally=(tally := Tally()))
    few.run(encode([("1" * 25,)] * 10))
    amounts = {name: amount for (name, _), amount in tally.take().items()}
    assert amounts["bertender_run_texts_total"] == 10
    assert amounts["bertender_run_tokens_total"] == 250
    assert amounts["bertender_run_padding_tokens_total"] == 12 * 32 - 250


@pytest.mark.parametrize("runtime", EVERY_RUNTIME)
def test_a_runtime_predicts_as_without_padding(
    runtime: str, exported: Artifact, task: Task
) -> None:
    opened = open_classifier(exported, threads=1, runtime=runtime)
    batch = opened.encode(task.dev.examples[:5])
    logits = opened.predictor.logits(PaddedShapes(512).padded(batch))[:5]
    close = 0.05 if runtime == "openvino-bf16" else 1e-5
    np.testing.assert_allclose(logits, opened.predictor.logits(batch), atol=close)


@needs("openvino")
def test_static_products_in_openvino_have_padded_shapes(
    exported: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig(scheme="static", runtime="openvino", calibration_texts=8)
    static = quantize(exported, task, config, tmp_path / "static")
    shapes = {
        (artifact.name, runtime): open_artifact(
            artifact,
            BackendParameters(tokens_per_bucket=64, threads=1, max_length=13, runtime=runtime),
            1,
        ).shapes
        for artifact in (static, exported)
        for runtime in ("openvino", "onnxruntime")
    }
    assert shapes.pop(("static", "openvino")) == PaddedShapes(longest_input=13)
    assert {*shapes.values()} == {OwnShapes()}
