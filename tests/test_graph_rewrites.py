"""Other forms of a graph have the operators of their names, and the logits of their source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.graph_rewrites import (
    biases_in_gemms,
    gelu_tables,
    merged_products,
    with_fused_attention,
)
from bertender.core.artifact import Artifact
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
    place = tmp_path_factory.mktemp("rewrites") / "static"
    static = quantize(exported, task, QuantizeConfig(scheme="static", calibrator="minmax"), place)
    return {"float32": onnx_file(exported), "static": onnx_file(static)}


def _logits(graph: Path) -> np.ndarray:
    session = open_session(graph)
    shape = (3, 7)
    ids = np.arange(21, dtype=np.int64).reshape(shape) + 5
    mask = np.array([[1] * 7, [1] * 5 + [0] * 2, [1] * 2 + [0] * 5])
    given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, int)}
    (logits,) = session.run(None, {node.name: given[node.name] for node in session.get_inputs()})
    return np.asarray(logits)


@pytest.mark.parametrize(
    ("rewrite", "source", "operators", "tolerance"),
    [
        (with_fused_attention, "float32", {"Attention": LAYERS}, 1e-4),
        (merged_products, "float32", {"Split": LAYERS}, 1e-4),
        (biases_in_gemms, "static", {"Gemm": 6 * LAYERS}, 0.02),
        (gelu_tables, "static", {"Erf": 0}, 0.05),
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
