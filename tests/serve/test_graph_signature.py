"""The signature that is read from a graph's bytes is the one that ONNX Runtime reports."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from serve.repository.config_pbtxt import DATA_TYPES, read_signature
from tests.serve.reported import reported


def test_it_is_what_onnx_runtime_reports(onnx_artifact: Artifact) -> None:
    path = onnx_artifact.path / "model.onnx"
    signature = read_signature(path)
    assert (signature.inputs, signature.outputs) == reported(path)


def test_every_data_type_is_onnxs_own() -> None:
    for number, name in DATA_TYPES.items():
        own = TensorProto.DataType.Name(number)
        assert name.removeprefix("TYPE_") in (
            own.replace("FLOAT16", "FP16").replace("FLOAT", "FP32").replace("DOUBLE", "FP64"),
            own.replace("BFLOAT16", "BF16"),
        )


NAME_OF_NO_TEXT = b"\x3a\x05\x5a\x03\x0a\x01\x80"
"""A graph with an input whose name is not UTF-8."""


@pytest.mark.parametrize("content", [b"", b"\xff\xff", NAME_OF_NO_TEXT, b"version https://git-lfs"])
def test_what_is_no_graph_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.onnx is no graph of ONNX"):
        read_signature(tmp_path / "model.onnx")


def test_a_tensor_without_a_shape_has_no_dimensions(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, None)
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    graph = helper.make_graph([helper.make_node("ReduceSum", ["x"], ["y"])], "g", [value], [out])
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    signature = read_signature(tmp_path / "model.onnx")
    assert (signature.inputs[0].dims, signature.outputs[0].dims) == (None, ())
