"""Smoothing moves loud channels of activations into weights, and leaves a model what it is."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from bertender.comparison.accuracy import predict
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize.config import SCHEMES
from quantize.graph import Product, constants_of, take_inventory
from quantize.graph_check import check_kernels, graph_failures, operators
from quantize.product_check import ProductFindings, _likeness
from quantize.quantizer import quantize
from quantize.smoothing import (
    INVERSE,
    LEAST_GAIN_DB,
    Group,
    Observed,
    choose_factors,
    choose_smoothing,
    factors_in,
    groups_of,
    smoothed,
    smoothed_like,
)
from tests.quantize.contexts import HERE, config_of, context_of, write
from tests.quick import quick
from tests.toy_models import save_artifact, tiny_classifier

LOUD = 5
"""A neuron."""
LOUDER = 50
SCHEMES_THAT_SMOOTH = [name for name, scheme in SCHEMES.items() if scheme.fitted]


def exported(model_type: str, task: Task, folder: Path) -> Artifact:
    """Return the graph of a model with a neuron that is far louder than others, as deep ones have.

    What reads it has weights as much smaller.
    """
    model = tiny_classifier(model_type)
    for name, parameter in model.named_parameters():
        if re.search(r"(intermediate.dense|ffn)\.(weight|bias)$", name):
            parameter.data[LOUD] *= LOUDER
        elif re.search(r"\d\.output.dense.weight$|ffn_output.weight$", name):
            parameter.data[:, LOUD] /= LOUDER
    source = save_artifact(model, task, folder / "torch")
    return export(source, task, ExportConfig(), folder / "onnx")


@pytest.fixture(scope="module")
def loud(task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """The graph of a loud BERT."""
    return exported("bert", task, tmp_path_factory.mktemp("loud"))


def test_the_float_graph_computes_what_it_did(loud: Artifact, task: Task, tmp_path: Path) -> None:
    context = context_of(loud, task, tmp_path)
    made = smoothed(context, choose_smoothing(context))
    assert made.graph != context.graph
    before = np.asarray(predict(context.classifier, task.dev.examples))
    after = np.asarray(predict(context.opened(made.graph), task.dev.examples))
    assert after == pytest.approx(before, abs=1e-5 * float(np.abs(before).max()))


def test_the_loud_neuron_gets_the_largest_factor(
    loud: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(loud, task, tmp_path)
    made = smoothed(context, choose_smoothing(context))
    neurons = tiny_classifier("bert").config.intermediate_size
    of_neurons = [each for each in factors_in(made.graph).values() if len(each) == neurons]
    assert len(of_neurons) == 4  # layers
    assert all(each.argmax() == LOUD and each.min() >= 1 for each in of_neurons)


@pytest.mark.parametrize("scheme", quick(SCHEMES_THAT_SMOOTH, "dynamic", "static"))
def test_a_smoothed_model_passes_the_gates_and_is_judged_again_from_its_file(
    scheme: str, loud: Artifact, task: Task, tmp_path: Path
) -> None:
    made = quantize(loud, task, config_of(scheme), tmp_path / "int8")
    findings = made.card.findings.quantization
    assert findings is not None
    assert findings.smoothing_db.keys() == factors_in(onnx_file(made)).keys() != set()
    assert min(findings.smoothing_db.values()) >= LEAST_GAIN_DB
    assert graph_failures(loud, made, task) == ()


def test_a_wrong_factor_is_found(loud: Artifact, task: Task, tmp_path: Path) -> None:
    made = quantize(loud, task, config_of("dynamic"), tmp_path / "int8")
    model = onnx.load(onnx_file(made))
    constant = next(each for each in model.graph.initializer if each.name.endswith(INVERSE))
    wrong = numpy_helper.to_array(constant).copy()
    wrong[:16] *= 2
    constant.CopyFrom(numpy_helper.from_array(wrong, constant.name))
    onnx.save(model, onnx_file(made))
    (failure, *_) = graph_failures(loud, made, task)
    assert "weights_gain" in failure or "weights_snr_db" in failure


def test_a_product_of_no_numbers_is_not_one_without_noise() -> None:
    figures = _likeness("weights", np.ones((2, 2)), np.full((2, 2), np.nan))
    assert ProductFindings("node", "8-bit", figures).failures


def observed(rows: np.ndarray) -> Observed:
    return Observed(rows.min(axis=0), rows.max(axis=0), rows)


def choose(rows: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
    group = Group((Product("node", "x", "w", *weight.shape, transposed=False, is_gemm=False),))
    weights = {"w": numpy_helper.from_array(weight, "w")}
    return choose_factors(group, {"x": observed(rows)}, weights, highest=127)


def test_channels_of_equal_loudness_gain_nothing() -> None:
    drawn = np.random.default_rng(0)
    rows, weight = drawn.uniform(-1, 1, (64, 8)), drawn.uniform(-1, 1, (8, 16))
    _, gain = choose(rows.astype(np.float32), weight.astype(np.float32))
    assert gain < LEAST_GAIN_DB


def test_a_channel_a_hundred_times_as_loud_gains_most_of_what_it_cost() -> None:
    """Its steps are a hundred times as wide: 40 dB, less what the weights have to carry."""
    drawn = np.random.default_rng(0)
    rows = drawn.uniform(-1, 1, (64, 32)).astype(np.float32)
    rows[:, LOUD] *= 100
    weight = drawn.uniform(-1, 1, (32, 16)).astype(np.float32)
    weight[LOUD] /= 100
    factors, gain = choose(rows, weight)
    assert gain > 20
    assert factors.argmax() == LOUD


def test_a_quiet_channel_is_not_made_louder() -> None:
    drawn = np.random.default_rng(0)
    rows = drawn.uniform(-1, 1, (64, 8)).astype(np.float32)
    rows[:, LOUD] *= 1e-3
    factors, _ = choose(rows, drawn.uniform(-1, 1, (8, 16)).astype(np.float32))
    assert factors.min() == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_no_number_is_left_for_the_gates(value: float) -> None:
    rows = np.ones((4, 4), dtype=np.float32)
    rows[0, 0] = value
    factors, gain = choose(rows, np.ones((4, 4), dtype=np.float32))
    assert gain == 0
    assert (factors == 1).all()


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
def test_a_weight_of_zeros_or_of_no_numbers_is_left(value: float) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (64, 8)).astype(np.float32)
    rows[:, LOUD] *= 100
    factors, gain = choose(rows, np.full((8, 4), value, dtype=np.float32))
    assert gain == 0
    assert (factors == 1).all()


def test_factors_are_bounded_where_most_channels_are_silent() -> None:
    """One of them may be heard in other texts, and would take all steps."""
    rows = np.zeros((64, 8), dtype=np.float32)
    rows[:, :2] = np.random.default_rng(0).uniform(1, 100, (64, 2))
    factors, _ = choose(rows, np.ones((8, 4), dtype=np.float32))
    assert factors.max() < 10


@pytest.mark.parametrize("value", [0.0, np.nan, np.inf, -1.0])
def test_a_damaged_factor_is_an_error(
    value: float, loud: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(loud, task, tmp_path)
    made = smoothed(context, choose_smoothing(context))
    model = onnx.load(made.graph)
    constant = next(each for each in model.graph.initializer if each.name.endswith(INVERSE))
    wrong = numpy_helper.to_array(constant).copy()
    wrong[0] = value
    constant.CopyFrom(numpy_helper.from_array(wrong, constant.name))
    onnx.save(model, made.graph)
    with pytest.raises(ModelError, match="are damaged"):
        smoothed_like(onnx_file(loud), made.graph, tmp_path / "again")


def test_a_head_of_two_products_still_runs_in_integers(task: Task, tmp_path: Path) -> None:
    """Between them stands a ReLU, which ONNX Runtime fuses with the first one."""
    model = tiny_classifier("distilbert", pad_token_id=0)
    with torch.no_grad():
        model.pre_classifier.weight[LOUD] *= LOUDER
        model.classifier.weight[:, LOUD] /= LOUDER
    source = save_artifact(model, task, tmp_path / "torch")
    floats = export(source, task, ExportConfig(), tmp_path / "onnx")
    context = context_of(floats, task, tmp_path, HERE, scheme="static", calibration_texts=32)
    written = write("static", smoothed(context, choose_smoothing(context)), tmp_path / "model.onnx")
    check_kernels(operators(tmp_path / "model.onnx"), len(written.quantized))


def product(node: str, activation: str, weight: str) -> Product:
    return Product(node, activation, weight, 4, 4, transposed=False, is_gemm=False)


def graph_of(*nodes: tuple[str, str, str]) -> onnx.ModelProto:
    made = [helper.make_node(kind, list(inputs), [f"{inputs}"]) for kind, *inputs in nodes]
    return helper.make_model(helper.make_graph(made, "graph", [], []))


def test_products_of_one_activation_or_one_weight_have_factors_in_common() -> None:
    products = [product("a", "x", "v"), product("b", "y", "w"), product("c", "x", "w")]
    graph = graph_of(*(("MatMul", each.activation, each.weight) for each in products))
    (group,) = groups_of(products, graph)
    assert {each.node for each in group.products} == {"a", "b", "c"}
    assert sorted(group.activations) == ["x", "y"]


def test_a_weight_that_something_else_reads_is_left() -> None:
    products = [product("a", "x", "v"), product("b", "y", "w")]
    graph = graph_of(("MatMul", "x", "v"), ("MatMul", "y", "w"), ("Gather", "w", "rows"))
    (group,) = groups_of(products, graph)
    assert group.activations == ["x"]


def test_layers_that_share_weights_share_factors(task: Task, tmp_path: Path) -> None:
    source = exported("albert", task, tmp_path / "albert")
    context = context_of(source, task, tmp_path)
    made = smoothed(context, choose_smoothing(context))
    found = factors_in(made.graph)
    assert found
    weights = constants_of(onnx.load(onnx_file(source)))
    shared = [
        group
        for group in groups_of(take_inventory(onnx_file(source)).products, onnx.load(made.graph))
        if len(group.activations) > 1
    ]
    assert weights and shared
    for group in shared:
        factors = [found[name] for name in group.activations if name in found]
        assert all((each == factors[0]).all() for each in factors)
