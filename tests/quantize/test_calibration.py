"""Watching activations: real tokens alone, whatever the batches, and no more memory than one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.models.classifier import onnx_file, open_classifier
from bertender.tasks.task import Task
from bertender.text.batch import Batch, Example
from quantize import context as calibration
from quantize.context import BINS, Batches, at_tokens, histograms, observed
from quantize.graph import take_inventory


class Encoded:
    """A token a letter, of width 1; padding is 1000, which would show in the activations."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []

    def __call__(self, examples: list[Example]) -> Batch:
        rows = [[float(ord(letter)) for letter in text] for (text,) in examples]
        longest = max(map(len, rows))
        ids = np.array([row + [1000.0] * (longest - len(row)) for row in rows], dtype=np.float32)
        ids = ids[:, :, None]
        mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        self.shapes.append(ids.shape[:2])
        return Batch(tuple(examples), {"input_ids": ids, "attention_mask": mask})


@pytest.fixture
def doubling(tmp_path: Path) -> Path:
    """A graph whose inner tensor is twice the tokens, and whose pooled one their first."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.FLOAT, ["batch", "seq", 1])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1])
    nodes = [
        helper.make_node("Add", ["input_ids", "input_ids"], ["twice"]),
        helper.make_node("ReduceMin", ["twice"], ["logits"], axes=[1], keepdims=0),
    ]
    graph = helper.make_graph(nodes, "doubling", [ids], [logits])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, tmp_path / "doubling.onnx")
    return tmp_path / "doubling.onnx"


TEXTS: list[Example] = [("ab",), ("abcdefghij",), ("c",), ("zz",)]


def test_padding_is_not_counted(doubling: Path) -> None:
    found = histograms(doubling, ["twice"], Batches(Encoded(), TEXTS))["twice"]
    letters = [ord(letter) for (text,) in TEXTS for letter in text]
    assert (found.low, found.high) == (2 * min(letters), 2 * max(letters))
    assert found.counts.sum() == len(letters) and len(found.counts) == BINS
    total = float((found.centers * found.counts).sum())
    assert total == pytest.approx(2 * sum(letters), rel=1e-3)


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_tokens_are_found_in_each_order_that_models_have(kind: Callable[..., Any]) -> None:
    """The second text is padded from its second token on."""
    values, mask = np.arange(12.0).reshape(2, 3, 2), np.array([[1, 1, 1], [1, 0, 0]], dtype=bool)
    orders = {
        "batch, seq": values,
        "seq, batch": values.transpose(1, 0, 2),
        "batch * seq": values.reshape(6, 2),
    }
    for order, own in orders.items():
        found = at_tokens(kind(own.copy()), kind(mask))
        assert sorted(np.asarray(found).reshape(-1).tolist()) == [*range(8)], order
    pooled = kind(values[:, 0].copy())
    assert at_tokens(pooled, kind(mask)) is pooled


def test_pooled_tensors_are_counted_whole(doubling: Path) -> None:
    found = histograms(doubling, ["logits"], Batches(Encoded(), TEXTS))["logits"]
    assert found.counts.sum() == len(TEXTS)


def test_how_texts_are_batched_changes_nothing(
    float_model: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, classifier = onnx_file(float_model), open_classifier(float_model)
    tensors = [product.activation for product in take_inventory(graph).products]
    found = []
    for tokens in (32, 4096):
        monkeypatch.setattr(calibration, "TOKENS_PER_BATCH", tokens)
        batches = Batches(classifier.encode, task.train.examples[:24])
        found.append(histograms(graph, tensors, batches))
    for name in tensors:
        one, other = found[0][name], found[1][name]
        assert one.counts.sum() == other.counts.sum() > 0
        assert one.low == pytest.approx(other.low, abs=1e-4)
        assert one.high == pytest.approx(other.high, abs=1e-4)
        assert np.abs(one.counts.cumsum() - other.counts.cumsum()).max() < 0.02 * one.counts.sum()


def test_no_more_than_one_batch_is_held(doubling: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "TOKENS_PER_BATCH", 4)
    encode = Encoded()
    batches = Batches(encode, [("abcd",)] * 50)
    run = observed(doubling, ["twice"], batches)
    encode.shapes.clear()
    next(run)
    begun = len([shape for shape in encode.shapes if shape == (1, 4)])
    assert begun == 1, "the second batch is not read before it is asked for"


def test_no_texts_are_refused() -> None:
    with pytest.raises(DataError, match=r"no texts to calibrate on, at least 1 is needed"):
        Batches(Encoded(), [])
