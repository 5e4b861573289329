"""The graph with QuantizeLinear pairs: weights by output, residuals in float, near its source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from quantize.graph import take_inventory
from quantize.integers import INTEGERS, affine
from quantize.post_training import QdqIntegers, weight_scales, write_qdq

INPUTS, HIDDEN, OUTPUTS = 6, 8, 3


def tensors(graph: onnx.GraphProto) -> dict[str, np.ndarray]:
    return {item.name: numpy_helper.to_array(item) for item in graph.initializer}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """x -> MatMul -> + x (residual) -> MatMul by the same weight -> Gemm, as pooler and head."""
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(HIDDEN, HIDDEN)).astype(np.float32) * np.logspace(-2, 1, HIDDEN)
    constants = {
        "shared": shared.astype(np.float32),
        "head": rng.normal(size=(OUTPUTS, HIDDEN)).astype(np.float32),
        "bias": rng.normal(size=OUTPUTS).astype(np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "shared"], ["first"], name="/a/MatMul"),
        helper.make_node("Add", ["first", "x"], ["sum"], name="/add"),
        helper.make_node("Tanh", ["sum"], ["tanh"], name="/tanh"),
        helper.make_node("MatMul", ["tanh", "shared"], ["second"], name="/b/MatMul"),
        helper.make_node("Gemm", ["second", "head", "bias"], ["y"], name="/c/Gemm", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "toy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", HIDDEN])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", OUTPUTS])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


RANGES = {"x": (-3.0, 3.0), "tanh": (-1.0, 1.0), "second": (-30.0, 30.0)}


def quantized(source: Path, **given: str) -> Path:
    target = source.with_name("quantized.onnx")
    settings = {"activations": "uint8", "weights": "int8-symmetric", **given}
    write_qdq(source, target, take_inventory(source).products, RANGES, QdqIntegers(**settings))
    onnx.checker.check_model(onnx.load(target))
    return target


def answers(path: Path, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(["y"], {"x": x})[0])


@pytest.mark.parametrize("weights", ["int8-symmetric", "int7-symmetric"])
@pytest.mark.parametrize("activations", ["uint8", "int8-symmetric"])
def test_the_graph_computes_with_rounded_numbers(
    source: Path, activations: str, weights: str
) -> None:
    """Written by hand beside it, in float64."""
    x = np.random.default_rng(1).normal(size=(5, HIDDEN)).astype(np.float32)
    constants = tensors(onnx.load(source).graph)

    def rounded(name: str, values: np.ndarray) -> np.ndarray:
        return affine(*RANGES[name], INTEGERS[activations]).rounded(values)

    def weight(name: str, transposed: bool = False) -> np.ndarray:
        value = constants[name].T if transposed else constants[name]
        scales = weight_scales(value, INTEGERS[weights].highest)
        return np.rint(value / scales) * scales

    first = rounded("x", x) @ weight("shared")
    tanh = np.tanh(first + x)  # the residual is what it was
    second = rounded("tanh", tanh) @ weight("shared")
    wanted = rounded("second", second) @ weight("head", transposed=True) + constants["bias"]
    found = answers(quantized(source, activations=activations, weights=weights), x)
    assert np.abs(found - wanted).max() < 0.02 * np.abs(wanted).max()
    assert np.abs(wanted - answers(source, x)).max() > 0.02 * np.abs(wanted).max() / 100


def test_only_products_read_what_is_rounded(source: Path) -> None:
    nodes = {node.name: node for node in onnx.load(quantized(source)).graph.node}
    assert list(nodes["/add"].input) == ["first", "x"]
    assert list(nodes["/a/MatMul"].input) == ["x_rounded", "shared_rounded"]
    assert list(nodes["/c/Gemm"].input) == ["second_rounded", "head_rounded", "bias_rounded"]


def test_a_shared_weight_is_stored_once_and_no_float_is_left(source: Path) -> None:
    graph = onnx.load(quantized(source)).graph
    constants = tensors(graph)
    assert set(constants) >= {"shared_quantized", "head_quantized", "bias_quantized"}
    assert not {"shared", "head", "bias"} & set(constants)
    assert constants["bias_quantized"].dtype == np.int32
    assert constants["head_quantized"].shape == (HIDDEN, OUTPUTS)
    axes = {
        node.input[0]: node.attribute[0].i
        for node in graph.node
        if node.op_type == "DequantizeLinear" and node.attribute
    }
    assert axes == {"shared_quantized": 1, "head_quantized": 1, "bias_quantized": 0}
    # ONNX Runtime before 1.31 cannot open a transposed weight with a scale for each output
    turned = [each.i for node in graph.node for each in node.attribute if each.name == "transB"]
    assert turned == [0]


def test_what_is_left_out_stays_float(source: Path) -> None:
    products = take_inventory(source).products[1:]
    target = source.with_name("some.onnx")
    write_qdq(source, target, products, RANGES, QdqIntegers("uint8", "int8-symmetric"))
    graph = onnx.load(target).graph
    assert list(graph.node[0].input) == ["x", "shared"]
    assert tensors(graph)["shared"].dtype == np.float32


@given(
    columns=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
    highest=st.sampled_from([64, 127]),
    seed=st.integers(0, 100),
)
def test_each_output_has_a_scale_of_its_own(columns: list[float], highest: int, seed: int) -> None:
    """However different the outputs are, none errs by more than half a step of its own."""
    weight = np.random.default_rng(seed).uniform(-1, 1, (INPUTS, len(columns))) * columns
    scales = weight_scales(weight, highest)
    assert scales.shape == (len(columns),)
    steps = np.rint(weight / scales)
    assert np.abs(steps).max(axis=0).tolist() == [highest] * len(columns)
    assert (np.abs(steps * scales - weight) <= scales / 2 * 1.0001).all()


def test_an_output_of_zeros_stays_zero() -> None:
    assert weight_scales(np.zeros((INPUTS, 2)), 127).tolist() == [1.0, 1.0]
