"""Sessions of ONNX Runtime: what is optimised, written and profiled, and what cannot be opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bertender.core import hardware as cpu
from bertender.core.errors import ModelError
from bertender.models.onnx_session import SESSION_CONFIG, open_session, session_config
from bertender.models.runtimes import saturates


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """x + 1 + 1, whose constants fold into one."""
    shape = ["rows"]
    ones = [numpy_helper.from_array(np.ones(1, np.float32), name) for name in ("a", "b")]
    nodes = [
        helper.make_node("Add", ["a", "b"], ["two"]),
        helper.make_node("Add", ["x", "two"], "y"),
    ]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    wanted = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    made = helper.make_graph(nodes, "graph", [given], [wanted], ones)
    opset = helper.make_opsetid("", 14)
    onnx.save(helper.make_model(made, opset_imports=[opset], ir_version=8), tmp_path / "graph.onnx")
    return tmp_path / "graph.onnx"


@pytest.mark.parametrize(("left_out", "nodes"), [((), 1), (None, 2)])
def test_constants_fold_unless_every_node_is_to_run(
    left_out: tuple[str, ...] | None, nodes: int, graph: Path, tmp_path: Path
) -> None:
    written = tmp_path / "optimized.onnx"
    session = open_session(graph, left_out=left_out, optimized=written)
    assert len(onnx.load(written).graph.node) == nodes
    assert session.run(None, {"x": np.float32([1, 2])})[0].tolist() == [3, 4]


@pytest.mark.parametrize(("settings", "fused"), [({}, 0), ({"left_out": ()}, 1)])
def test_a_layer_norm_is_not_fused_with_the_addition_before_it(
    settings: dict[str, tuple[str, ...]], fused: int, tmp_path: Path
) -> None:
    scale = numpy_helper.from_array(np.ones(8, np.float32), "scale")
    nodes = [
        helper.make_node("Add", ["x", "y"], ["sum"]),
        helper.make_node("LayerNormalization", ["sum", "scale"], ["z"]),
    ]
    x, y, z = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, "seq", 8]) for name in "xyz"
    )
    made = helper.make_graph(nodes, "graph", [x, y], [z], [scale])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(made, opset_imports=[opset], ir_version=8)
    open_session(model.SerializeToString(), optimized=tmp_path / "optimized.onnx", **settings)
    running = [node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert running.count("SkipLayerNormalization") == fused


def integer_products(weight: np.ndarray, *places: str) -> bytes:
    """Return a graph that multiplies x (rows, inputs) by one weight (inputs, outputs) in places."""
    nodes = [helper.make_node("MatMulInteger", ["x", "w"], [place]) for place in places]
    given = helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, ["rows", len(weight)])
    shape = ["rows", weight.shape[1]]
    wanted = [helper.make_tensor_value_info(each, onnx.TensorProto.INT32, shape) for each in places]
    constants = [numpy_helper.from_array(weight.astype(np.int8), "w")]
    made = helper.make_graph(nodes, "graph", [given], wanted, constants)
    opset = helper.make_opsetid("", 17)
    encoded: bytes = helper.make_model(
        made, opset_imports=[opset], ir_version=8
    ).SerializeToString()
    return encoded


def test_8_bit_products_are_added_exactly_on_every_cpu() -> None:
    """x86 without 8-bit dot products would add pairs of them in 16 bits."""
    rng = np.random.default_rng(0)
    x, weight = rng.integers(200, 256, (4, 768)), rng.integers(100, 128, (768, 8))
    session = open_session(integer_products(weight, "y"))
    assert np.array_equal(session.run(None, {"x": x.astype(np.uint8)})[0], x @ weight)


@pytest.mark.parametrize(
    ("flags", "entries"),
    [
        ((), SESSION_CONFIG),
        (("avx2", "avx512f"), SESSION_CONFIG),
        (("avx2", "avx512_vnni"), {}),
        (("avx2", "avx_vnni"), {}),
        (("avx2", "amx_int8"), {}),
    ],
)
def test_a_cpu_with_8_bit_dot_products_is_not_kept_from_them(
    flags: tuple[str, ...], entries: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the entry, products would not run in AMX, which adds exactly by itself."""
    monkeypatch.setattr(cpu, "cpu_facts", lambda: ("a CPU", flags))
    assert session_config() == entries
    options = open_session(integer_products(np.ones((64, 8)), "y")).get_session_options()
    for name, value in SESSION_CONFIG.items():
        if entries:
            assert options.get_session_config_entry(name) == value
        else:
            with pytest.raises(RuntimeError, match="does not have configuration"):
                options.get_session_config_entry(name)


@pytest.mark.parametrize("largest", [64, 127])
def test_where_products_share_a_weight_sums_are_exact_or_the_graph_is_refused(largest: int) -> None:
    x, weight = np.full((2, 64), 255), np.full((64, 4), largest)
    graph = integer_products(weight, "y", "z")
    if saturates() and largest > 64:
        with pytest.raises(ModelError, match=r"no 8-bit dot products.*shared.*--target avx2"):
            open_session(graph)
    else:
        for found in open_session(graph).run(None, {"x": x.astype(np.uint8)}):
            assert np.array_equal(found, x @ weight)


def test_what_is_no_graph_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "graph.onnx").write_bytes(b"nothing")
    with pytest.raises(ModelError, match=r"cannot open .*graph\.onnx.*export and quantize"):
        open_session(tmp_path / "graph.onnx")


def test_threads_are_those_that_pytorch_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = integer_products(np.ones((64, 8)), "y")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert open_session(graph).get_session_options().intra_op_num_threads == 3
    assert open_session(graph, threads=2).get_session_options().intra_op_num_threads == 2
