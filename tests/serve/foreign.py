"""A model repository of somebody else: a linear model of ONNX, and an ensemble that calls it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

__all__ = ["LINEAR", "PIPELINE", "add_node", "change_graph", "write_foreign", "write_linear"]

LINEAR = """
name: "linear"
backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [2] }
instance_group { kind: KIND_CPU }
model_warmup {
  name: "one"
  batch_size: 1
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [4] zero_data: true } }
}
"""

PIPELINE = """
name: "pipeline"
platform: "ensemble"
max_batch_size: 8
input { name: "IN" data_type: TYPE_FP32 dims: [4] }
output { name: "OUT" data_type: TYPE_FP32 dims: [2] }
ensemble_scheduling {
  step {
    model_name: "linear"
    model_version: -1
    input_map { key: "x" value: "IN" }
    output_map { key: "y" value: "OUT" }
  }
}
"""


def write_foreign(directory: Path) -> Path:
    """Write the repository; nothing is wrong with it."""
    for name, config in (("linear", LINEAR), ("pipeline", PIPELINE)):
        (directory / name / "1").mkdir(parents=True)
        (directory / name / "config.pbtxt").write_text(config)
    write_linear(directory / "linear" / "1" / "model.onnx")
    return directory


def write_linear(path: Path, dtype: type = np.float32, batch: str | int = "batch") -> None:
    """Write y = x W, where x is (batch, 4) and y is (batch, 2)."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = numpy_helper.from_array(np.ones((4, 2), dtype), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "linear",
        [helper.make_tensor_value_info("x", kind, [batch, 4])],
        [helper.make_tensor_value_info("y", kind, [batch, 2])],
        [weight],
    )
    onnx.save(helper.make_model(graph), path)


def add_node(path: Path, operator: str) -> None:
    """Add a node whose outputs nobody reads."""
    model = onnx.load(path)
    model.graph.node.append(helper.make_node(operator, ["x"], ["a", "b", "c"]))
    onnx.save(model, path)


def change_graph(path: Path, name: str, dims: list[int | str] | None = None) -> None:
    """Add an output to a graph, with these dimensions."""
    model = onnx.load(path)
    value = helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
    model.graph.output.append(value)
    onnx.save(model, path)
