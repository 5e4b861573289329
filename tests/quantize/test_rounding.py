"""Weights are rounded so that errors cancel on the texts that they are rounded for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from quantize.graph import constants_of
from quantize.integers import weight_scales
from quantize.rounding import Compensation, GramMatrix, round_weights
from tests.quantize.contexts import context_of, write

HIGHEST = 127


def nearest(weight: np.ndarray, scales: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(weight / scales), -HIGHEST, HIGHEST)


def test_the_second_of_two_equal_inputs_carries_what_the_first_one_lost() -> None:
    """0.4 and 0.4 are 0 and 0 to the nearest; of equal inputs only the sum counts, which is 0.8."""
    weight, gram = np.array([[0.4], [0.4]]), GramMatrix(np.ones((2, 2)), tokens=2)
    assert Compensation(gram).rounded(weight, np.ones(1), HIGHEST).tolist() == [[0], [1]]


def test_inputs_that_do_not_vary_together_are_rounded_to_the_nearest() -> None:
    weight = np.random.default_rng(0).normal(size=(300, 8))
    scales = weight_scales(weight, HIGHEST)
    made = Compensation(GramMatrix(np.eye(300), tokens=300)).rounded(weight, scales, HIGHEST)
    assert (made == nearest(weight, scales)).all()


@pytest.mark.parametrize("tokens", [20, 1000])
def test_outputs_of_inputs_that_vary_together_have_less_error(tokens: int) -> None:
    drawn = np.random.default_rng(0)
    mixed = drawn.normal(size=(300, 300)) @ np.diag(1 / np.arange(1, 301))
    rows, unseen = (drawn.normal(size=(count, 300)) @ mixed.T for count in (tokens, 500))
    weight = drawn.normal(size=(300, 8))
    scales = weight_scales(weight, HIGHEST)
    made = Compensation(GramMatrix(rows.T @ rows, tokens)).rounded(weight, scales, HIGHEST)

    def error(integers: np.ndarray) -> float:
        return float(np.square(unseen @ (integers * scales - weight)).sum())

    assert error(made) < 0.5 * error(nearest(weight, scales))
    assert np.abs(made).max() <= HIGHEST


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
def test_where_nothing_is_known_each_weight_is_the_nearest(value: float) -> None:
    weight = np.random.default_rng(0).normal(size=(4, 2))
    scales = weight_scales(weight, HIGHEST)
    made = Compensation(GramMatrix(np.full((4, 4), value), tokens=4)).rounded(
        weight, scales, HIGHEST
    )
    assert (made == nearest(weight, scales)).all()


@pytest.mark.parametrize("scheme", ["dynamic", "static"])
@pytest.mark.parametrize("target", ["vnni", "avx2"])
def test_a_graph_has_these_integers(
    scheme: str, target: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    few = {"calibration_texts": 8} if scheme == "static" else {}
    context = context_of(float_model, task, tmp_path, target, scheme=scheme, **few)
    context = replace(context, integer_weights=round_weights(context))
    write(scheme, context, tmp_path / "model.onnx")
    constants = constants_of(onnx.load(tmp_path / "model.onnx"))
    floats = constants_of(onnx.load(context.graph))
    differing = 0
    for product in context.inventory.products:
        stored = numpy_helper.to_array(floats[product.weight])
        weight = stored.T if product.transposed else stored
        integers = numpy_helper.to_array(constants[f"{product.weight}_quantized"])
        scale = numpy_helper.to_array(constants[f"{product.weight}_scale"])
        assert (integers == context.integer_weights[product.weight]).all()
        assert np.abs(integers * scale - weight).max() < 4 * scale.max()
        differing += int((integers != np.rint(weight / scale)).sum())
    assert differing
