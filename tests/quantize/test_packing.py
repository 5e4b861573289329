"""Packed constants: the same integers, in as many bytes as their bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertender.core.errors import ModelError
from bertender.models.onnx_session import open_session
from quantize.config import WEIGHT_BITS
from quantize.q_bert import LEVEL_DISTANCES, WIDTHS, pack_constants

SHAPES = [(16, 8), (3, 5), (1, 1)]


def odd_integers(bits: int, shape: tuple[int, ...]) -> npt.NDArray[np.int8]:
    """Return every level, and then some, in an order of no pattern."""
    count = int(np.prod(shape))
    positions = np.random.default_rng(bits).permutation(np.arange(count) % 2**bits)
    return np.asarray(2 * positions - (2**bits - 1), dtype=np.int8).reshape(shape)


def graph_of(path: Path, constants: dict[str, npt.NDArray[np.int8]]) -> Path:
    """Write a graph that returns its constants."""
    nodes = [helper.make_node("Identity", [name], [f"{name}_out"]) for name in constants]
    outputs = [
        helper.make_tensor_value_info(f"{name}_out", TensorProto.INT8, value.shape)
        for name, value in constants.items()
    ]
    stored = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "constants", [], outputs, stored)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path


def test_bits_that_are_trained_can_be_packed() -> None:
    assert WIDTHS.keys() == LEVEL_DISTANCES.keys() == {*WEIGHT_BITS}


@pytest.mark.parametrize("optimized", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bits", WIDTHS)
def test_the_integers_are_the_same(
    bits: int, shape: tuple[int, ...], optimized: bool, tmp_path: Path
) -> None:
    integers = odd_integers(bits, shape)
    path = graph_of(tmp_path / "model.onnx", {"a": integers, "b": -integers})
    pack_constants(path, {"a": bits, "b": bits})
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = open_session(path, left_out=() if optimized else None)
    first, second = session.run(None, {})
    assert np.array_equal(first, integers) and np.array_equal(second, -integers)


def test_other_constants_stay(tmp_path: Path) -> None:
    values = {"a": odd_integers(2, (4, 4)), "b": np.arange(5, dtype=np.int8)}
    path = graph_of(tmp_path / "model.onnx", values)
    pack_constants(path, {"a": 2})
    stored = {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}
    assert "a" not in stored and np.array_equal(stored["b"], values["b"])


@pytest.mark.parametrize("value", [0, 2, -5, 127, -128])
def test_other_integers_are_refused(value: int, tmp_path: Path) -> None:
    path = graph_of(tmp_path / "model.onnx", {"a": np.array([1, value], dtype=np.int8)})
    with pytest.raises(ModelError, match=r"^a must have odd integers of 2 bits"):
        pack_constants(path, {"a": 2})


def test_a_constant_that_is_missing_is_refused(tmp_path: Path) -> None:
    path = graph_of(tmp_path / "model.onnx", {"a": odd_integers(2, (2, 2))})
    with pytest.raises(ModelError, match="has no constants b to pack"):
        pack_constants(path, {"a": 2, "b": 2})


@pytest.mark.parametrize("bits", WIDTHS)
def test_the_file_has_so_many_bits_a_value(bits: int, tmp_path: Path) -> None:
    shape = (512, 256)
    path = graph_of(tmp_path / "model.onnx", {"a": odd_integers(bits, shape)})
    pack_constants(path, {"a": bits})
    size = path.stat().st_size
    assert size == pytest.approx(bits / 8 * np.prod(shape), abs=5_000)
