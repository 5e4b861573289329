"""The dynamically quantized graph: which weights are 8-bit, with which scales and range."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize.graph import take_inventory
from quantize.post_training import quantize_nodes, write_dynamic
from tests.quantize.contexts import context_of
from tests.toy_models import VOCABULARY, save_artifact, tiny_classifier


@pytest.fixture(scope="module")
def graph(
    float_model: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> onnx.GraphProto:
    """The tiny BERT's quantized graph."""
    folder = tmp_path_factory.mktemp("dynamic")
    write_dynamic(context_of(float_model, task, folder), folder / "model.onnx")
    return onnx.load(folder / "model.onnx").graph


def tensors(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in graph.initializer}


def weighted_products(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Matrix products with a constant weight."""
    constants = tensors(graph)
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    return [node for node in products if node.input[1] in constants]


def test_every_product_with_a_weight_is_one_of_integers(
    graph: onnx.GraphProto, float_model: Artifact
) -> None:
    before = weighted_products(onnx.load(onnx_file(float_model)).graph)
    after = [node for node in graph.node if node.op_type == "MatMulInteger"]
    assert len(after) == len(before) == 4 * 6 + 2  # 4 layers, pooler and head
    assert weighted_products(graph) == []


def test_weights_are_symmetric_int8_with_a_scale_for_each_output(graph: onnx.GraphProto) -> None:
    constants = tensors(graph)
    for node in (node for node in graph.node if node.op_type == "MatMulInteger"):
        weight = constants[node.input[1]]  # (inputs, outputs)
        scale = constants[node.input[1].replace("_quantized", "_scale")]
        assert weight.dtype == np.int8
        assert scale.shape == (weight.shape[1],)
        assert not constants[node.input[3]].any()
        assert (np.abs(weight).max(axis=0) >= 126).all()  # each column uses its whole range


def test_embedding_tables_are_8_bit_and_rows_are_turned_back_after_the_look_up(
    graph: onnx.GraphProto,
) -> None:
    constants = tensors(graph)
    tables = {name: array for name, array in constants.items() if "embeddings.weight_quan" in name}
    assert sorted(name.split(".")[2] for name in tables) == [
        "position_embeddings",
        "token_type_embeddings",
        "word_embeddings",
    ]
    assert {array.dtype for array in tables.values()} == {np.dtype(np.uint8)}
    readers = {node.op_type for node in graph.node if set(node.input) & set(tables)}
    assert readers == {"Gather"}


def test_nothing_is_written_next_to_the_source(float_model: Artifact, tmp_path: Path) -> None:
    """Where another process may quantize the same artifact, or nobody may write."""
    source = shutil.copytree(float_model.path, tmp_path / "source")
    before = source.stat().st_mtime_ns  # a file that comes and goes changes it too
    graph = source / onnx_file(float_model).name
    products = [each.node for each in take_inventory(graph).products]
    (tmp_path / "out").mkdir()
    quantize_nodes(graph, tmp_path / "out" / "model.onnx", products, "int8-symmetric")
    assert source.stat().st_mtime_ns == before
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.onnx"]


def test_no_large_float_is_left(graph: onnx.GraphProto) -> None:
    floats = [array for array in tensors(graph).values() if array.dtype == np.float32]
    assert all(array.ndim < 2 for array in floats)


def test_weights_are_near_what_they_were(graph: onnx.GraphProto, float_model: Artifact) -> None:
    constants, source = tensors(graph), onnx.load(onnx_file(float_model)).graph
    transposed = {node.input[1] for node in source.node if node.op_type == "Gemm"}
    matrices = {name: array for name, array in tensors(source).items() if array.ndim == 2}
    for name, array in matrices.items():
        stored = constants[f"{name}_quantized"].astype(np.float32)
        scale, zero = constants[f"{name}_scale"], constants[f"{name}_zero_point"]
        wanted = array.T if name in transposed else array
        assert np.abs((stored - zero) * scale - wanted).max() <= 0.51 * scale.max()


@pytest.mark.parametrize(("target", "largest"), [("vnni", 127), ("avx2", 64), ("arm64", 127)])
def test_weights_keep_to_7_bits_where_products_would_saturate(
    target: str, largest: int, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    write_dynamic(context_of(float_model, task, tmp_path, target), tmp_path / "model.onnx")
    constants = tensors(onnx.load(tmp_path / "model.onnx").graph)
    weights = [array for array in constants.values() if array.dtype == np.int8 and array.ndim == 2]
    assert len(weights) == 26
    assert max(int(np.abs(array.astype(int)).max()) for array in weights) == largest


def test_a_graph_without_weights_is_refused(tmp_path: Path) -> None:
    names = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 2]) for n in ("a", "b", "c")]
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    graph = helper.make_graph([node], "no weights", names[:2], names[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="1 matrix products and none of them has a constant"):
        take_inventory(tmp_path / "model.onnx")


def test_both_directions_of_an_lstm_are_8_bit(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "source")
    exported = export(source, task, ExportConfig(), tmp_path / "onnx")
    write_dynamic(context_of(exported, task, tmp_path), tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    constants, operators = tensors(graph), [node.op_type for node in graph.node]
    assert "LSTM" not in operators and operators.count("DynamicQuantizeLSTM") == 2
    for node in (node for node in graph.node if node.op_type == "DynamicQuantizeLSTM"):
        for weight, scale in ((node.input[1], node.input[8]), (node.input[2], node.input[10])):
            assert constants[weight].dtype == np.int8
            assert constants[scale].shape == (1, constants[weight].shape[2])
    assert weighted_products(graph) == []
    floats = {array.shape for array in constants.values() if array.dtype == np.float32}
    assert max(int(np.prod(shape)) for shape in floats) == 2 * 4 * 16  # biases of an LSTM


@pytest.mark.parametrize("feed_forward_size", [0, 16])
def test_the_table_of_a_static_model_is_8_bit(
    feed_forward_size: int, task: Task, tmp_path: Path
) -> None:
    """It is nearly all of the bytes; one weight a token stays in float."""
    changes = {"feed_forward_size": feed_forward_size}
    model = tiny_classifier("bertender-static", **changes)
    source = save_artifact(model, task, tmp_path / "source")
    exported = export(source, task, ExportConfig(), tmp_path / "onnx")
    write_dynamic(context_of(exported, task, tmp_path), tmp_path / "model.onnx")
    constants = tensors(onnx.load(tmp_path / "model.onnx").graph)
    of_table = [each for each in constants.values() if each.shape == (VOCABULARY, 24)]
    assert [each.dtype for each in of_table] == [np.uint8]
    floats = {each.shape for each in constants.values() if each.dtype == np.float32}
    assert max(int(np.prod(shape)) for shape in floats) == VOCABULARY
