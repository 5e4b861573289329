"""Equal weights: each node reads them by their own name, and the answers stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from bertender.models.classifier import onnx_file, open_classifier
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import drop_aliases, export
from quantize.quantizer import quantize
from tests.quantize.contexts import HERE, config_of
from tests.toy_models import save_artifact, tiny_classifier


def graph_of(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    wanted = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    tensors = [numpy_helper.from_array(np.array([1, 2], np.float32), "bias")]
    return helper.make_model(helper.make_graph(nodes, "graph", [given], [wanted], tensors))


def test_names_of_names_are_followed() -> None:
    model = graph_of(
        helper.make_node("Identity", ["bias"], ["second"]),
        helper.make_node("Identity", ["second"], ["third"]),
        helper.make_node("Identity", ["x"], ["copy"]),
        helper.make_node("Add", ["copy", "third"], ["sum"]),
        helper.make_node("Add", ["second", "sum"], ["y"]),
    )
    before = ReferenceEvaluator(model).run(None, {"x": np.float32([3, 4])})[0]
    drop_aliases(model)
    assert [(node.op_type, *node.input) for node in model.graph.node] == [
        ("Identity", "x"),
        ("Add", "copy", "bias"),
        ("Add", "bias", "sum"),
    ]
    assert np.array_equal(ReferenceEvaluator(model).run(None, {"x": np.float32([3, 4])})[0], before)


def test_an_answer_that_is_a_weight_stays() -> None:
    model = graph_of(helper.make_node("Identity", ["bias"], ["y"]))
    drop_aliases(model)
    assert len(model.graph.node) == 1


def test_a_model_of_equal_weights_is_quantized_whole(task: Task, tmp_path: Path) -> None:
    """As one that was stacked, or whose biases have not been trained."""
    model = tiny_classifier("bert")
    first, *others = model.bert.encoder.layer
    with torch.no_grad():
        for layer in others:
            layer.load_state_dict(first.state_dict())
    source = save_artifact(model, task, tmp_path / "source")
    exported = export(source, task, ExportConfig(), tmp_path / "onnx")
    graph = onnx.load(onnx_file(exported)).graph
    constants = {tensor.name for tensor in graph.initializer}
    assert not [node for node in graph.node if {*node.input} <= constants and node.input]
    int8 = quantize(exported, task, config_of("static", target=HERE), tmp_path / "int8")
    layers = model.config.num_hidden_layers
    assert int8.card.findings.quantization.products == 6 * layers + 2
    assert open_classifier(int8).logits(task.dev.examples).shape == (len(task.dev), 2)
