"""The file of a graph: small weights in it, large ones beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bertender.models.graphs import copy_graph, save_graph, weights_size_bytes
from bertender.models.onnx_session import ONNX_DATA_NAME, ONNX_NAME

WEIGHTS = np.arange(512, dtype=np.float32).reshape(2, 256)


def tiny_graph() -> onnx.ModelProto:
    """A product with a matrix of 2048 bytes, and a sum with a number."""
    tensors = [
        numpy_helper.from_array(WEIGHTS, "weights"),
        numpy_helper.from_array(np.float32(3), "number"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weights"], ["product"]),
        helper.make_node("Add", ["product", "number"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 2])
    wanted = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 256])
    return helper.make_model(helper.make_graph(nodes, "graph", [given], [wanted], tensors))


def test_large_weights_lie_beside_the_graph_and_small_ones_in_it(tmp_path: Path) -> None:
    path = tmp_path / ONNX_NAME
    assert weights_size_bytes(tiny_graph()) == pytest.approx(2052, abs=64)
    save_graph(tiny_graph(), path, external_above_mb=0)
    assert (tmp_path / ONNX_DATA_NAME).stat().st_size == WEIGHTS.nbytes
    assert (tmp_path / ONNX_DATA_NAME).stat().st_mode == path.stat().st_mode
    written = {tensor.name: tensor for tensor in onnx.load(path).graph.initializer}
    assert np.array_equal(numpy_helper.to_array(written["weights"]), WEIGHTS)
    without = onnx.load(path, load_external_data=False).graph.initializer
    assert [bool(tensor.external_data) for tensor in without] == [True, False]


def test_what_lay_beside_an_earlier_graph_is_gone(tmp_path: Path) -> None:
    path = tmp_path / ONNX_NAME
    for _ in range(2):
        save_graph(tiny_graph(), path, external_above_mb=0)
        assert (tmp_path / ONNX_DATA_NAME).stat().st_size == WEIGHTS.nbytes
    save_graph(onnx.load(path), path, external_above_mb=1)
    assert [file.name for file in tmp_path.iterdir()] == [ONNX_NAME]
    assert np.array_equal(numpy_helper.to_array(onnx.load(path).graph.initializer[0]), WEIGHTS)


@pytest.mark.parametrize("external_above_mb", [0, 1])
def test_a_copy_has_its_weights_next_to_it(external_above_mb: int, tmp_path: Path) -> None:
    path, folder = tmp_path / ONNX_NAME, tmp_path / "copy"
    folder.mkdir()
    save_graph(tiny_graph(), path, external_above_mb)
    copy = copy_graph(path, folder)
    assert [file.name for file in sorted(folder.iterdir())] == [
        file.name for file in sorted(tmp_path.iterdir()) if file.is_file()
    ]
    assert np.array_equal(numpy_helper.to_array(onnx.load(copy).graph.initializer[0]), WEIGHTS)
