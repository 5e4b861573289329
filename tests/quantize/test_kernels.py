"""What ONNX Runtime makes of a graph, and the refusal of one that would run in float."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Task
from quantize.graph_check import KERNELS, check_kernels, operators
from tests.quantize.contexts import HERE, context_of, write


def test_fused_operators_are_counted(float_model: Artifact) -> None:
    found = operators(onnx_file(float_model))
    written = {node.op_type for node in onnx.load(onnx_file(float_model)).graph.node}
    assert "BiasGelu" in found and "BiasGelu" not in written
    assert not KERNELS["onnxruntime"].integer_products.keys() & set(found)
    assert list(found) == sorted(found)


def test_a_product_that_is_not_fused_is_seen(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    """A weight turned back with a scale that is computed while running has no integer kernel."""
    context = context_of(float_model, task, tmp_path, HERE, calibration_texts=16)
    quantized = len(write("static", context, tmp_path / "model.onnx").quantized)
    assert check_kernels(operators(tmp_path / "model.onnx"), quantized) == quantized
    model = onnx.load(tmp_path / "model.onnx")
    product = next(node for node in model.graph.node if node.name.endswith("query/MatMul"))
    (pair,) = [node for node in model.graph.node if product.input[1] in node.output]
    doubled = onnx.helper.make_node("Add", [pair.output[0], pair.output[0]], ["doubled"])
    product.input[1] = "doubled"
    model.graph.node.insert(list(model.graph.node).index(product), doubled)
    onnx.save(model, tmp_path / "broken.onnx")
    with pytest.raises(
        ModelError, match=r"26 products were quantized, and .* runs only 25 of them"
    ):
        check_kernels(operators(tmp_path / "broken.onnx"), quantized)
