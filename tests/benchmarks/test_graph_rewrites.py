"""Other forms of a graph have the operators of their names, and the logits of their source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.fusion.graph_rewrites import (
    biases_in_gemms,
    gelu_tables,
    merged_products,
)
from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.models.onnx_session import open_session
from bertender.models.opening import onnx_file
from bertender.tasks.task import Task
from quantize.quantizer import QuantizeConfig, quantize

LAYERS = 4
Rewrite = Callable[[onnx.ModelProto], onnx.ModelProto]


@pytest.fixture(scope="module")
def graphs(
    exported: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The float graph, and static ones with unsigned and with signed activations."""
    folder = tmp_path_factory.mktemp("rewrites")
    made = {"float32": onnx_file(exported)}
    for name, target in (("static", "vnni"), ("signed", "arm64")):
        config = QuantizeConfig(scheme="static", calibrator="minmax", target=target)
        made[name] = onnx_file(quantize(exported, task, config, folder / name))
    return made


def _logits(graph: Path) -> np.ndarray:
    session = open_session(graph)
    shape = (3, 7)
    ids = np.arange(21, dtype=np.int64).reshape(shape) + 5
    mask = np.array([[1] * 7, [1] * 5 + [0] * 2, [1] * 2 + [0] * 5])
    arrays = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, int)}
    (logits,) = session.run(None, {node.name: arrays[node.name] for node in session.get_inputs()})
    return np.asarray(logits)


@pytest.mark.parametrize(
    ("rewrite", "source", "operators", "tolerance"),
    [
        (merged_products, "float32", {"Split": LAYERS}, 1e-4),
        (biases_in_gemms, "static", {"Gemm": 6 * LAYERS}, 0.02),
        (gelu_tables, "static", {"Erf": 0}, 0.05),
        (gelu_tables, "signed", {"Erf": 0}, 0.05),
    ],
)
def test_a_rewritten_graph_has_its_operators_and_nearly_the_logits_of_its_source(
    rewrite: Rewrite,
    source: str,
    operators: dict[str, int],
    tolerance: float,
    graphs: dict[str, Path],
    tmp_path: Path,
) -> None:
    before, path = onnx.load(graphs[source]), tmp_path / "rewritten.onnx"
    after = rewrite(onnx.load(graphs[source]))
    onnx.save(after, path)
    counts = [Counter(node.op_type for node in each.graph.node) for each in (before, after)]
    assert {name: counts[1][name] for name in operators} == operators
    assert any(counts[0][name] != count for name, count in operators.items())
    wanted, actual = _logits(graphs[source]), _logits(path)
    assert np.abs(actual - wanted).max() <= tolerance * max(1.0, float(np.ptp(wanted)))


@pytest.mark.parametrize(
    ("rewrite", "source"),
    [
        (merged_products, "static"),
        (biases_in_gemms, "float32"),
        (gelu_tables, "float32"),
    ],
)
def test_a_graph_without_the_form_is_refused(
    rewrite: Rewrite, source: str, graphs: dict[str, Path]
) -> None:
    with pytest.raises(ModelError, match="Give a BERT's export"):
        rewrite(onnx.load(graphs[source]))


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("highest", [0.3, 1.0, 4.0])
def test_a_table_of_gelu_is_off_by_a_step_of_its_input_at_most(
    kind: type[np.integer], highest: float
) -> None:
    """Also where outputs are small, whose inputs are larger than they."""
    limits = np.iinfo(kind)
    scale = np.float32((highest + 0.17) / 255)
    zero = kind(limits.min + round(0.17 / float(scale)))
    nodes = [
        helper.make_node("Div", ["x", "root"], ["divided"], name="div"),
        helper.make_node("Erf", ["divided"], ["erf"], name="erf"),
        helper.make_node("Add", ["erf", "one"], ["sum"], name="add"),
        helper.make_node("Mul", ["x", "sum"], ["product"], name="mul"),
        helper.make_node("Mul", ["product", "half"], ["gelu"], name="halve"),
        helper.make_node("QuantizeLinear", ["gelu", "scale", "zero"], ["y"], name="quantize"),
    ]
    constants = {
        "root": np.float32(np.sqrt(2)),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "scale": scale,
        "zero": zero,
    }
    graph = helper.make_graph(
        nodes,
        "gelu",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows"])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    x = np.linspace(-6, highest, 1000, dtype=np.float32)
    (wanted,) = open_session(model.SerializeToString()).run(None, {"x": x})
    (actual,) = open_session(gelu_tables(model).SerializeToString()).run(None, {"x": x})
    assert np.abs(actual.astype(int) - wanted.astype(int)).max() <= 1 + 4 / highest
