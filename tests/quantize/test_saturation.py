"""The probe: exact sums beside those of the CPU, and what a CPU that saturates would answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.tasks.task import Task
from quantize import saturation
from quantize.dynamic import write_dynamic
from quantize.saturation import TOLERATED, emulated, probe, refuse_saturated
from quantize.static import write_static
from tests.quantize.jobs import job_of


def integer_graph(path: Path, weight: np.ndarray) -> Path:
    """x (uint8) times a weight (int8), summed in 32 bits."""
    constants = {"w": weight, "x0": np.array(3, np.uint8), "w0": np.array(-2, np.int8)}
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["x", "w", "x0", "w0"], ["y"], name="product")],
        "integers",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["batch", len(weight)])],
        [helper.make_tensor_value_info("y", TensorProto.INT32, ["batch", weight.shape[1]])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.save(model, path)
    return path


def test_the_emulation_is_exact_where_pairs_leave_16_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(100, 127, (3072, 5)).astype(np.int8)
    x = rng.integers(200, 255, (4, 3072)).astype(np.uint8)
    exact = emulated(integer_graph(tmp_path / "graph.onnx", weight), tmp_path / "exact.onnx")
    session = onnxruntime.InferenceSession(str(exact), providers=["CPUExecutionProvider"])
    wanted = (x.astype(np.int64) - 3) @ (weight.astype(np.int64) + 2)
    assert np.array_equal(session.run(["y"], {"x": x})[0], wanted)


@pytest.mark.parametrize("write", [write_dynamic, write_static])
def test_a_cpu_that_adds_exactly_passes(
    write: object, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    job = job_of(float_model, task, tmp_path, "avx2")  # exact on every CPU
    written = write(job, tmp_path / "model.onnx")  # type: ignore[operator]
    found = probe(job, tmp_path / "model.onnx")
    assert found["products"] == len(written.quantized) > 20, "those of Gemm as well"
    assert found["mean_difference"] < TOLERATED / 2
    assert found["texts"] == min(saturation.PROBED_TEXTS, len(task.train))


def test_sums_that_saturate_are_refused(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A CPU without 8-bit dot products, in numpy: pairs of products are cut off at 16 bits."""
    rng = np.random.default_rng(0)
    weight, x = rng.integers(-127, 128, (768, 4)), rng.integers(0, 256, (16, 768))
    pairs = (x[:, :, None] * weight).reshape(16, 384, 2, 4).sum(axis=2)
    cut = np.clip(pairs, -(2**15), 2**15 - 1)
    assert (cut != pairs).mean() > 0.01
    with pytest.raises(ModelError, match=r"logits are off by .*, allowed is 0\.02.*--target avx2"):
        refuse_saturated(cut.sum(axis=1).astype(np.float32), pairs.sum(axis=1).astype(np.float32))
    assert not refuse_saturated(pairs.sum(axis=1), pairs.sum(axis=1))["max_difference"]


def test_the_probe_compares_the_graph_with_its_emulation(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is exact is taken from a graph with other weights: the probe must see that."""
    job = job_of(float_model, task, tmp_path)
    write_dynamic(job, tmp_path / "model.onnx")
    real = saturation.emulated

    def other(graph: Path, target: Path) -> Path:
        model = onnx.load(real(graph, target))
        for item in model.graph.initializer:
            if item.name.startswith("classifier") and item.name.endswith("_scale"):
                item.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(item), item.name))
        onnx.save(model, target)
        return target

    monkeypatch.setattr(saturation, "emulated", other)
    with pytest.raises(ModelError, match="does not add the graph's 8-bit products exactly"):
        probe(job, tmp_path / "model.onnx")
