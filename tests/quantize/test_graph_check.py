"""`verify` compares graphs too, where the float one is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults import planted, weight_scale
from bertender.core.artifact import Artifact
from bertender.gate.artifacts import VerifyConfig, verify
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Task
from quantize.graph import take_inventory
from quantize.graph_check import failures_if_quantized, float_source, graph_failures
from quantize.quantizer import quantize
from tests.quantize.contexts import config_of


@pytest.fixture
def int8(float_model: Artifact, task: Task, tmp_path: Path) -> Artifact:
    return quantize(float_model, task, config_of("dynamic"), tmp_path / "int8")


def test_the_float_graph_is_found_from_itself_and_from_what_was_exported(
    float_model: Artifact, int8: Artifact, teacher: Artifact
) -> None:
    parent = float_model.card.parent
    assert parent is not None
    exported = Artifact.load(float_model.path / parent.path)
    for reference in (float_model, exported):
        found = float_source(reference, int8)
        assert found is not None and found.digest == float_model.digest
    assert float_source(teacher, int8) is None, "it was made of something else"
    assert float_source(exported, float_model) is None, "nothing is quantized"


def test_a_scale_that_no_logit_shows_fails_by_the_name_of_its_product(
    float_model: Artifact, int8: Artifact, task: Task
) -> None:
    assert graph_failures(float_model, int8, task) == ()
    assert verify(float_model, int8, task, VerifyConfig(), failures_if_quantized).passed
    products = take_inventory(onnx_file(float_model)).products
    graph = onnx_file(int8)
    planted(graph, weight_scale(1.1), products[4], products[5], graph)
    parity = verify(float_model, int8, task, VerifyConfig(), failures_if_quantized)
    (failure,) = (each for each in parity.failures if each.startswith("product "))
    assert failure.startswith(f"product {products[4].node}: ") and "gain is 1.1" in failure
