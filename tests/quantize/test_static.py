"""Static scales: one outlier of the calibration texts must not cost all others precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertender.core.artifact import Artifact
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.onnx_session import open_session
from bertender.tasks.task import Task
from bertender.text.batch import Batch, Example
from quantize import integers as calibrators
from quantize.context import Batches, histograms
from quantize.graph import take_inventory
from quantize.integers import CALIBRATORS, INTEGERS
from quantize.post_training import QdqIntegers, calibrated_ranges, write_qdq
from tests.quantize.contexts import context_of, write

TEXTS, TOKENS, WIDTH = 200, 10, 512
OUTLIER = 25.0
"""Where the other million activations are of a normal distribution."""


def states_of(examples: list[Example]) -> Batch:
    """Encode texts that are numbers; in the first one stands the planted outlier."""
    rows = [np.random.default_rng(int(text)).normal(size=(TOKENS, WIDTH)) for (text,) in examples]
    for (text,), row in zip(examples, rows, strict=True):
        if text == "0":
            row[0, 0] = OUTLIER
    states = np.array(rows, dtype=np.float32)
    mask = np.ones(states.shape[:2], dtype=np.int64)
    return Batch(tuple(examples), {"states": states, "attention_mask": mask})


@pytest.fixture
def two_layers(tmp_path: Path) -> Path:
    rng = np.random.default_rng(7)
    constants = {
        "first": (rng.normal(size=(WIDTH, 64)) / np.sqrt(WIDTH)).astype(np.float32),
        "second": rng.normal(size=(64, 2)).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["states", "first"], ["hidden"], name="/first/MatMul"),
        helper.make_node("Tanh", ["hidden"], ["tanh"]),
        helper.make_node("MatMul", ["tanh", "second"], ["logits"], name="/second/MatMul"),
    ]
    graph = helper.make_graph(
        nodes,
        "two layers",
        [helper.make_tensor_value_info("states", TensorProto.FLOAT, ["batch", "seq", WIDTH])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", "seq", 2])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_clipping_beats_minmax_where_an_outlier_is_planted(two_layers: Path) -> None:
    products = take_inventory(two_layers).products
    texts = [(str(number),) for number in range(TEXTS)]
    seen = histograms(two_layers, [each.activation for each in products], Batches(states_of, texts))
    assert seen["states"].high == OUTLIER
    others = states_of([(str(TEXTS + number),) for number in range(20)]).arrays["states"]
    errors = {}
    for name, row in CALIBRATORS.items():
        ranges = {
            tensor: row.clip(histogram, 99.99, INTEGERS["uint8"])
            for tensor, histogram in seen.items()
        }
        target = two_layers.with_name(f"{name}.onnx")
        write_qdq(two_layers, target, products, ranges, QdqIntegers("uint8", "int8-symmetric"))
        errors[name] = distance(two_layers, target, others)
    assert errors["percentile"] < 0.8 * errors["minmax"], errors
    assert errors["mse"] < 0.8 * errors["minmax"], errors


def distance(reference: Path, candidate: Path, states: np.ndarray) -> float:
    answers = [
        open_session(path).run(["logits"], {"states": states})[0] for path in (reference, candidate)
    ]
    return float(np.abs(answers[0] - answers[1]).mean())


def test_answers_do_not_depend_on_the_batch(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    """Dynamic scales are those of the batch; static ones are known before."""
    context = context_of(float_model, task, tmp_path, calibration_texts=32)
    write("static", context, tmp_path / "model.onnx")
    classifier = context.opened(tmp_path / "model.onnx")
    texts = task.dev.examples[:8]
    alone = np.concatenate([classifier.logits([text]) for text in texts])
    scale = np.abs(open_classifier(float_model).logits(texts)).max()
    # sums of another order may round an activation to the next step
    assert np.abs(classifier.logits(texts) - alone).max() < 0.02 * scale


def test_the_ranges_are_those_of_the_calibrator_and_recorded(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrators, "TRIED_SHARES", np.linspace(1, 0.1, 10))
    found = {
        name: calibrated_ranges(context_of(float_model, task, tmp_path, calibrator=name))
        for name in CALIBRATORS
    }
    activations = {
        product.activation for product in take_inventory(onnx_file(float_model)).products
    }
    assert found["minmax"].keys() == activations
    for name in CALIBRATORS:
        for tensor, (low, high) in found[name].items():
            widest = found["minmax"][tensor]
            assert widest[0] - 1e-6 <= low <= high <= widest[1] + 1e-6
    context = context_of(float_model, task, tmp_path, calibrator="minmax")
    written = write("static", context, tmp_path / "model.onnx")
    assert written.ranges == found["minmax"]


@pytest.mark.parametrize("target", ["vnni", "arm64"])
def test_the_ranges_are_searched_on_the_target_s_integers(
    target: str,
    float_model: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calibrators, "TRIED_SHARES", np.linspace(1, 0.1, 10))
    settings = {"calibrator": "mse", "calibration_texts": 8}
    found = calibrated_ranges(context_of(float_model, task, tmp_path, target=target, **settings))
    tied = [low == -high for low, high in found.values()]
    assert all(tied) if target == "arm64" else not any(tied)


def test_an_activation_is_quantized_once_for_all_that_multiply_it(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path, calibration_texts=16)
    write("static", context, tmp_path / "static.onnx")
    activations = [each.activation for each in context.inventory.products]
    nodes = onnx.load(tmp_path / "static.onnx").graph.node
    quantizing = [node.input[0] for node in nodes if node.op_type == "QuantizeLinear"]
    assert sorted(quantizing) == sorted({*activations}) and len(quantizing) < len(activations)
