"""Embedding tables of 4 bits: near their float rows, small, and alone in the graph in that."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from packaging.requirements import Requirement

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.tasks.task import Task
from export.config import ExportConfig
from export.exporter import export
from quantize import four_bit as four_bit_tables
from quantize import post_training as dynamic
from quantize.config import QuantizeConfig
from quantize.context import QuantizationContext
from quantize.four_bit import in_groups
from quantize.graph import FOUR_BIT_LOOKUP, take_inventory
from quantize.q_bert import round_in_groups
from tests.quantize.contexts import compared, context_of, write
from tests.quick import quick
from tests.toy_models import save_artifact, tiny_classifier

Array = npt.NDArray[Any]
TOKENS = "/bert/embeddings/word_embeddings/Gather"


@pytest.fixture
def context(float_model: Artifact, task: Task, tmp_path: Path) -> QuantizationContext:
    return context_of(float_model, task, tmp_path, scheme="four-bit-embeddings", block_size=16)


@settings(max_examples=50)
@given(
    st.integers(1, 6),
    st.integers(1, 40),
    st.sampled_from([16, 32]),
    st.integers(0, 2**32 - 1),
)
def test_a_group_has_the_scale_of_least_error(rows: int, width: int, size: int, seed: int) -> None:
    table = np.random.default_rng(seed).standard_t(3, (rows, width)).astype(np.float32)
    integers, scales = in_groups(table, size)
    assert integers.shape == table.shape and scales.shape == (rows, -(-width // size))
    assert integers.min() >= -8 and integers.max() <= 7
    wide = np.repeat(scales, size, axis=1)[:, :width]
    padded = np.pad(table, ((0, 0), (0, -width % size))).reshape(rows, -1, size)
    plain = np.repeat(np.abs(padded).max(axis=-1) / 7, size, axis=1)[:, :width]
    error, by_largest = (
        np.square(np.rint(table / scale).clip(-8, 7) * scale - table).sum()
        for scale in (wide, plain)
    )
    assert np.square(integers * wide - table).sum() == pytest.approx(error)
    assert error <= 1.0001 * by_largest + 1e-9, "the largest value alone would be no better"


@pytest.mark.parametrize("width", [32, 40])
def test_looked_up_rows_are_rounded_as_the_table_is(width: int) -> None:
    table = torch.nn.Embedding(6, width)
    integers, scales = in_groups(table.weight.detach().numpy(), 16)
    whole = integers * np.repeat(scales, 16, axis=1)[:, :width]
    numbers = torch.tensor([[5, 0], [3, 3]])
    rows = round_in_groups(16)(table, numbers, table(numbers))
    assert np.array_equal(rows.detach().numpy(), whole[numbers.numpy()])
    rows.sum().backward()
    assert table.weight.grad is not None
    assert table.weight.grad[:, 0].tolist() == [1, 0, 0, 2, 0, 1]


def test_rows_of_zeros_stay_zeros() -> None:
    integers, scales = in_groups(np.zeros((2, 32), np.float32), 16)
    assert not integers.any() and np.isfinite(scales).all()


def test_the_largest_table_alone_has_4_bits(context: QuantizationContext, tmp_path: Path) -> None:
    """Every text reads the same positions and segments: their error would add up."""
    written = write("four-bit-embeddings", context, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    small = [node.name for node in graph.node if node.op_type == FOUR_BIT_LOOKUP]
    assert small == [TOKENS] and written.tables_of_4_bits == 1
    assert len(context.tables) == 3, "the others have 8 bits"
    tables = take_inventory(context.graph).tables
    names = {item.name for item in graph.initializer}
    assert not names & {tables[node] for node in small}, "the float tables are gone"


def test_a_table_that_two_texts_look_up_in_is_one(task: Task, tmp_path: Path) -> None:
    source = save_artifact(tiny_classifier("bertender-bilstm"), task, tmp_path / "source")
    floats = export(source, task, ExportConfig(), tmp_path / "onnx")
    context = context_of(floats, task, tmp_path, scheme="four-bit-embeddings")
    written = write("four-bit-embeddings", context, tmp_path / "model.onnx")
    graph = onnx.load(tmp_path / "model.onnx").graph
    lookups = [node for node in graph.node if node.op_type == FOUR_BIT_LOOKUP]
    assert len(lookups) == 2 and len({node.input[0] for node in lookups}) == 1
    assert written.tables_of_4_bits == 1


def test_a_table_of_an_odd_width_has_8_bits(task: Task, tmp_path: Path) -> None:
    model = tiny_classifier("bert", hidden_size=33, num_attention_heads=3)
    source = save_artifact(model, task, tmp_path / "source")
    floats = export(source, task, ExportConfig(), tmp_path / "onnx")
    context = context_of(floats, task, tmp_path, scheme="four-bit-embeddings")
    written = write("four-bit-embeddings", context, tmp_path / "model.onnx")
    assert written.tables_of_4_bits == 0
    kinds = {each.kind for each in _compared(context, tmp_path / "model.onnx")}
    assert kinds == {"8-bit", "table"}


def _swapped(integers: Array, scales: Array) -> tuple[Array, Array]:
    return integers >> 4 | integers << 4, scales


def _one_row_moved(integers: Array, scales: Array) -> tuple[Array, Array]:
    integers[[7, 8]] = integers[[8, 7]]
    return integers, scales


def _one_row_of_other_scales(integers: Array, scales: Array) -> tuple[Array, Array]:
    scales[7] *= -1
    return integers, scales


def _one_higher(integers: Array, scales: Array) -> tuple[Array, Array]:
    return _moved(integers, 1), scales


def _one_lower(integers: Array, scales: Array) -> tuple[Array, Array]:
    return _moved(integers, -1), scales


def _one_row_higher(integers: Array, scales: Array) -> tuple[Array, Array]:
    integers[7] = _moved(integers[7], 1)
    return integers, scales


def _moved(integers: Array, by: int) -> Array:
    """Add to both values of each byte; the largest and the least stay in 4 bits."""
    low, high = (np.clip(each.astype(int) + by, 0, 15) for each in (integers & 15, integers >> 4))
    return (low | high << 4).astype(np.uint8)


FAULTS = {
    "integers one too high": _one_higher,
    "integers one too low": _one_lower,
    "integers of one row one too high": _one_row_higher,
    "scales a tenth too small": lambda integers, scales: (integers, scales * np.float32(0.9)),
    "scales a tenth too large": lambda integers, scales: (integers, scales * np.float32(1.1)),
    "halves of bytes swapped": _swapped,
    "rows off by one": lambda integers, scales: (np.roll(integers, 1, axis=0), scales),
    "scales off by one": lambda integers, scales: (integers, np.roll(scales, 1, axis=0)),
    "groups off by one": lambda integers, scales: (integers, np.roll(scales, 1, axis=1)),
    "two rows exchanged": _one_row_moved,
    "the sign of one row": _one_row_of_other_scales,
}


@pytest.mark.parametrize(
    "fault",
    quick(FAULTS, "integers one too high", "scales a tenth too large", "rows off by one"),
)
def test_a_fault_of_a_table_is_found(
    fault: str, context: QuantizationContext, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    write("four-bit-embeddings", context, path)
    assert not [each for each in _compared(context, path) if each.failures]
    model = onnx.load(path)
    (lookup,) = [node for node in model.graph.node if node.name == TOKENS]
    stored = {item.name: item for item in model.graph.initializer}
    parts = [stored[lookup.input[place]] for place in (0, 2)]
    wrong = FAULTS[fault](*(numpy_helper.to_array(each).copy() for each in parts))
    for part, values in zip(parts, wrong, strict=True):
        part.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(values), part.name))
    onnx.save(model, path)
    (failed,) = [each for each in _compared(context, path) if each.failures]
    assert (failed.node, failed.kind) == (TOKENS, "4-bit table")


def test_it_goes_by_graphs_of_two_files(
    context: QuantizationContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those above 2 GB must."""
    for name in ("parted", "two"):
        (tmp_path / name).mkdir()
    parted = tmp_path / "parted" / "model.onnx"
    onnx.save(onnx.load(context.graph), parted, save_as_external_data=True, size_threshold=0)
    write("four-bit-embeddings", context, tmp_path / "one.onnx")
    for module in (dynamic, four_bit_tables):
        monkeypatch.setattr(module, "MOST_MB", 0)
    write("four-bit-embeddings", replace(context, graph=parted), tmp_path / "two" / "model.onnx")
    assert len([*(tmp_path / "two").iterdir()]) == 2
    one, two = (
        {item.name: numpy_helper.to_array(item) for item in onnx.load(path).graph.initializer}
        for path in (tmp_path / "one.onnx", tmp_path / "two" / "model.onnx")
    )
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_openvino_has_no_such_look_up() -> None:
    with pytest.raises(ConfigError, match=r"no look-up in tables of 4 bits.*--scheme static"):
        QuantizeConfig.parse({"scheme": "four-bit-embeddings", "runtime": "openvino"})


def test_tables_in_float_are_another_scheme() -> None:
    with pytest.raises(ConfigError, match="leaves in float the tables"):
        QuantizeConfig.parse({"scheme": "four-bit-embeddings", "no_embeddings": True})


def _compared(context: QuantizationContext, graph: Path):  # type: ignore[no-untyped-def]
    return compared(context.graph, graph, context.texts(16, ""))


def test_the_runtime_that_is_required_has_the_look_up() -> None:
    """The operator reads bytes of two values from ONNX Runtime 1.23 on."""
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    lists = [project["dependencies"], *project["optional-dependencies"].values()]
    required = [Requirement(line) for lines in lists for line in lines]
    runtimes = [each.specifier for each in required if each.name == "onnxruntime"]
    assert len(runtimes) == 2
    assert not any(each.contains("1.22.1") for each in runtimes)
