"""The benchmark of parity over runtimes: each artifact against itself, by the runtime's floats."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.float_parity import measuring as float_parity
from benchmarks.float_parity.measuring import FloatParityBenchmark, run
from benchmarks.float_parity.table import float_parity_block, verified_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ConfigError
from bertender.core.processors import processor_name
from bertender.core.saving import save_result
from bertender.measure.runtimes import tolerance_in
from bertender.measure.verify import VerifyConfig, verify
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig, quantize
from tests.runtimes import needs

OTHERS = [name for name in RUNTIMES if name != DEFAULT_RUNTIME]


@pytest.fixture(scope="module")
def exported(trained: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return export(trained, task, ExportConfig(), tmp_path_factory.mktemp("parity") / "onnx")


@pytest.fixture(autouse=True)
def own_task(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_parity, "recorded_task", lambda artifact, changes: task)


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in OTHERS])
def test_a_runtime_is_judged_by_its_floats(name: str, exported: Artifact, tmp_path: Path) -> None:
    out = tmp_path / "parity.json"
    run([exported.path], out, runtime=name, texts=8)
    (row,) = FloatParityBenchmark.model_validate_json(out.read_text()).rows
    assert (row.tolerance, row.parity.runtime) == (tolerance_in(name, "float32"), name)
    assert row.texts == 8 < row.parity.texts
    assert (row.parity.reference, row.parity.passed) == (row.parity.candidate, True)
    text = float_parity_block("parity.json", out)
    (line,) = (line for line in text.splitlines() if f"`{row.tolerance}`" in line)
    assert line.endswith("| yes |") and "4 layers" in line and "Raw: `parity.json`" in text
    failed = row.model_copy(update={"parity": row.parity.model_copy(update={"failures": ("x",)})})
    result = FloatParityBenchmark.model_validate_json(out.read_text())
    out.write_text(result.model_copy(update={"rows": (failed,)}).model_dump_json())
    assert "| no |" in float_parity_block("parity.json", out)


def test_results_of_verify_are_rows_of_a_table(
    exported: Artifact, task: Task, tmp_path: Path
) -> None:
    config = VerifyConfig(texts=8)
    parity = verify(exported, exported, task, config, lambda *_: None)
    assert parity.environment == environment()
    failed = parity.model_copy(update={"failures": ("x",)})
    files = {"one.json": tmp_path / "one.json", "two.json": tmp_path / "two.json"}
    for path, result in zip(files.values(), (parity, failed), strict=True):
        save_result(result, path)
    text = verified_block(files)
    rows = [line for line in text.splitlines() if line.startswith(f"| {exported.name} against")]
    assert [row.split(" | ")[-1] for row in rows] == ["yes |", "no |"]
    assert all("| ONNX Runtime |" in row for row in rows)
    assert f"{processor_name(environment())} with onnxruntime" in text
    unknown = parity.model_copy(update={"environment": None})
    save_result(unknown, files["two.json"])
    text = verified_block(files)
    assert "Machine: " in text and "not recorded." in text
    assert "Raw: `one.json`, `two.json`" in text


@needs("openvino")
def test_artifacts_and_runtimes_that_cannot_be_compared_are_refused(
    exported: Artifact, trained: Artifact, task: Task, tmp_path: Path
) -> None:
    small = quantize(exported, task, QuantizeConfig(scheme="dynamic"), tmp_path / "int8")
    for artifact in (small, trained):
        with pytest.raises(ConfigError, match="bertender export"):
            run([artifact.path], tmp_path / "parity.json", runtime="openvino", texts=8)
    with pytest.raises(ConfigError, match="is the one that others are compared with"):
        run([exported.path], tmp_path / "parity.json", runtime="openvino,onnxruntime")
