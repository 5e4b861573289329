"""Quantizing for each runtime: its own kernels, sums and logits are what the gates check."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from bertender.cli.findings import quantization_lines
from bertender.core import hardware as cpu
from bertender.core.artifact import Artifact
from bertender.core.errors import (
    ConfigError,
    ModelError,
    RuntimeMissingError,
    UnknownNameError,
)
from bertender.models import runtimes
from bertender.models.classifier import onnx_file, open_classifier
from bertender.models.runtimes import RUNTIMES, WITH_INTEGERS, Runtime, largest_weight
from bertender.tasks.task import Task
from quantize import integers as targets
from quantize.config import QuantizeConfig
from quantize.graph_check import KERNELS, MULTIPLIES, check_kernels, operators
from quantize.post_training import write_dynamic
from quantize.product_check import check_sums, find_parts, sample_rows
from quantize.quantizer import quantize
from tests.quantize.contexts import HERE, context_of, write
from tests.runtimes import EVERY_RUNTIME_WITH_INTEGERS, needs, with_integers

STATIC = {"scheme": "static", "target": HERE, "calibration_texts": 16, "parity_texts": 8}
PRODUCTS = 4 * 6 + 2


@pytest.mark.parametrize("runtime", with_integers("openvino"))
def test_static_products_run_in_integers_in_it(
    runtime: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig.parse({**STATIC, "runtime": runtime})
    artifact = quantize(float_model, task, config, tmp_path / "int8")
    found = artifact.card.findings.quantization
    assert found is not None and found.runtime == runtime == artifact.card.config["runtime"]
    assert found.products == found.running_in_integers == PRODUCTS
    products = KERNELS[runtime].integer_products
    assert sum(found.operators.get(name, 0) for name in products) == PRODUCTS
    assert found.operators == operators(onnx_file(artifact), runtime)
    first = quantization_lines(artifact.card.findings)[0]
    assert f"{RUNTIMES[runtime].title}: 26 of 26 quantized products run in integers" in first
    expected = open_classifier(float_model).logits(task.dev.examples)
    logits = open_classifier(artifact, runtime=runtime).logits(task.dev.examples)
    assert 0 < np.abs(logits - expected).max() < 0.1 * np.abs(expected).max()


@pytest.mark.parametrize("runtime", with_integers("openvino"))
def test_its_sums_are_probed(
    runtime: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    context = context_of(float_model, task, tmp_path, HERE, calibration_texts=16)
    write("static", context, tmp_path / "model.onnx")
    products = find_parts(context.graph, tmp_path / "model.onnx")
    samples = sample_rows(tmp_path / "model.onnx", products, context.texts(16, ""))
    findings = check_sums(products, samples, KERNELS[runtime].run)
    assert findings.products == PRODUCTS and findings.largest_deviation < findings.allowed


@pytest.mark.parametrize("runtime", EVERY_RUNTIME_WITH_INTEGERS)
def test_a_graph_in_memory_runs(runtime: str) -> None:
    place = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows", 2])
    ends = [onnx.ValueInfoProto(name=name) for name in ("twice", "square")]
    nodes = [helper.make_node("Add", ["x", "x"], ["twice"])]
    nodes += [helper.make_node("Mul", ["x", "x"], ["square"])]
    opset = [helper.make_opsetid("", 18)]
    made = helper.make_graph(nodes, "graph", [place], ends)
    model = helper.make_model(made, opset_imports=opset, ir_version=8)
    values = np.float32([[1, 2], [3, 4]])
    twice, square = KERNELS[runtime].run(model, values)
    np.testing.assert_array_equal(twice, 2 * values)
    np.testing.assert_array_equal(square, values**2)


@pytest.mark.parametrize("runtime", EVERY_RUNTIME_WITH_INTEGERS)
def test_a_float_graph_has_no_integer_products(runtime: str, float_model: Artifact) -> None:
    counts = operators(onnx_file(float_model), runtime)
    assert not KERNELS[runtime].integer_products.keys() & counts.keys()
    assert min(counts.values()) > 0 and "Const" not in counts
    openvino = tuple(f"{name} {kind}" for name in MULTIPLIES for kind in ("f32", "bf16"))
    products = ("MatMul", "Gemm", "FusedMatMul", *openvino)
    assert sum(counts.get(name, 0) for name in products) >= 12


def test_every_runtime_with_integers_has_its_kernels() -> None:
    assert KERNELS.keys() == {*WITH_INTEGERS}


@needs("openvino")
@pytest.mark.one_path
@pytest.mark.parametrize(("target", "largest"), [("vnni", 127), ("avx2", 64)])
def test_what_it_would_add_wrongly_on_this_cpu_is_not_opened(
    target: str,
    largest: int,
    float_model: Artifact,
    task: Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = tmp_path / "model.onnx"
    write("static", context_of(float_model, task, tmp_path, target, calibration_texts=16), graph)
    assert largest_weight(graph) == largest
    monkeypatch.setattr(runtimes, "saturates", lambda: True)
    if target == "avx2":
        RUNTIMES["openvino"].open(graph)
    else:
        with pytest.raises(ModelError, match=r"up to 127, allowed is 64.*'onnxruntime'.*avx2"):
            RUNTIMES["openvino"].open(graph)
        monkeypatch.setattr(runtimes, "saturates", lambda: False)
        RUNTIMES["openvino"].open(graph)


@needs("openvino")
def test_products_that_it_runs_in_float_saturate_nowhere(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    write_dynamic(context_of(float_model, task, tmp_path), tmp_path / "dynamic.onnx")
    for graph in (onnx_file(float_model), tmp_path / "dynamic.onnx"):
        assert largest_weight(graph) == 0


@pytest.mark.parametrize(
    ("system", "processor", "flags", "expected"),
    [
        ("Linux", "x86_64", (), True),
        ("Linux", "x86_64", ("avx2",), True),
        ("Linux", "AMD64", ("avx2", "avx512f"), True),
        ("Linux", "x86_64", ("avx2", "avx_vnni"), False),
        ("Linux", "aarch64", (), False),
        ("Windows", "AMD64", (), False),
    ],
)
def test_x86_without_dot_products_saturates(
    system: str,
    processor: str,
    flags: tuple[str, ...],
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtimes.platform, "system", lambda: system)
    monkeypatch.setattr(runtimes.platform, "machine", lambda: processor)
    monkeypatch.setattr(cpu, "cpu_facts", lambda: ("a CPU", flags))
    assert runtimes.saturates() is expected


DYNAMIC_SCALES = [
    {"scheme": "dynamic"},
    {"scheme": "mixed", "base": "dynamic", "max_drop": 1.0},
    {"scheme": "four-bit"},
    {"scheme": "four-bit-embeddings"},
]


@pytest.mark.parametrize("settings", DYNAMIC_SCALES, ids=lambda settings: settings["scheme"])
@pytest.mark.parametrize("runtime", WITH_INTEGERS)
def test_dynamic_scales_are_refused_where_they_would_run_in_float(
    runtime: str, settings: dict[str, object]
) -> None:
    if RUNTIMES[runtime].dynamic_scales:
        QuantizeConfig.parse({**settings, "runtime": runtime})
    else:
        with pytest.raises(ConfigError, match=rf"runtime={runtime}: ") as error:
            QuantizeConfig.parse({**settings, "runtime": runtime})
        advised = re.search(r"[Gg]ive --(\w+) (\w+)", str(error.value))
        assert advised is not None
        changed = {**settings, advised[1]: advised[2]}
        QuantizeConfig.parse({**changed, "runtime": runtime})


@pytest.mark.parametrize("runtime", EVERY_RUNTIME_WITH_INTEGERS)
def test_a_row_says_whether_its_runtime_multiplies_with_dynamic_scales(
    runtime: str, float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    graph = tmp_path / "dynamic.onnx"
    write_dynamic(context_of(float_model, task, tmp_path), graph)
    running = check_kernels(operators(graph, runtime), 0, runtime)
    assert running == (PRODUCTS if RUNTIMES[runtime].dynamic_scales else 0)


@needs("openvino")
def test_what_it_would_add_wrongly_here_is_refused_before_any_work(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of a dynamic scheme run in float there, exactly."""
    monkeypatch.setattr(targets, "saturates", lambda: True)
    settings = {"target": "vnni", "runtime": "openvino", "parity_texts": 8}
    config = QuantizeConfig.parse({"scheme": "static", **settings})
    with pytest.raises(ModelError, match="not add those of 8-bit weights"):
        quantize(float_model, task, config, tmp_path / "int8")
    static = ("dynamic", "static", "mixed", "qat")
    assert [config.changed({"scheme": name}).is_static for name in static] == [
        False,
        True,
        False,
        True,
    ]


@needs("openvino")
def test_without_a_scheme_the_first_that_it_runs_is_taken(
    float_model: Artifact, task: Task, tmp_path: Path
) -> None:
    config = QuantizeConfig.parse({"target": HERE, "runtime": "openvino", "parity_texts": 8})
    artifact = quantize(float_model, task, config, tmp_path / "int8")
    assert artifact.card.config["scheme"] == "static"
    tried = artifact.card.findings.quantization.tried
    assert [each.scheme for each in tried] == ["four-bit-embeddings", "dynamic"]
    assert all(each.skipped for each in tried) and "--scheme static" in tried[1].skipped


def test_a_missing_or_unknown_runtime_is_refused_before_any_work(
    float_model: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UnknownNameError, match=r"no runtime 'openvin'\. Did you mean 'openvino'"):
        QuantizeConfig.parse({**STATIC, "runtime": "openvin"})
    monkeypatch.setattr(Runtime, "version", None)
    config = QuantizeConfig.parse({**STATIC, "runtime": "openvino"})
    with pytest.raises(RuntimeMissingError, match=r"bertender\[openvino\]"):
        quantize(float_model, task, config, tmp_path / "int8")
