"""Profiles of graphs: every runtime has its own measure, and the table shows what is slowest."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.common.kernel_times import KernelTimes
from benchmarks.profiles import measuring as benchmark
from benchmarks.profiles.measuring import PROFILERS, Profile, ProfileBenchmark, measure_profiles
from benchmarks.profiles.table import profile_block
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import ModelError
from bertender.core.machine_load import MachineLoad
from bertender.measure.latency import LatencyConfig
from bertender.models.runtimes import RUNTIMES
from bertender.tasks.task import Task
from tests.runtimes import EVERY_RUNTIME_WITH_INTEGERS

QUICK = LatencyConfig(threads=1, noisy=True)


def test_every_runtime_of_the_cpu_has_a_measure() -> None:
    assert [*PROFILERS] == [name for name, row in RUNTIMES.items() if not row.needs_gpu]


@pytest.mark.parametrize("runtime", EVERY_RUNTIME_WITH_INTEGERS)
def test_a_runtime_measures_its_operators(runtime: str, exported: Artifact, task: Task) -> None:
    result = measure_profiles([exported], task, [runtime], QUICK)
    assert [each.texts for each in result.profiles] == [1, min(32, len(task.dev))]
    for each in result.profiles:
        times = each.times.operators_ms
        assert each.runtime == runtime and min(times.values()) >= 0 < sum(times.values())
        assert {"MatMul", "FullyConnected", "FusedMatMul", "Gemm", "Attention"} & {*times}


def test_a_torch_artifact_is_refused(teacher: Artifact, task: Task) -> None:
    with pytest.raises(ModelError, match="Export it first"):
        measure_profiles([teacher], task, ["onnxruntime"], QUICK)


def made_up() -> ProfileBenchmark:
    times = {"MatMul": 6.0, "Softmax": 3.0, "Gather": 0.6, "Cast": 0.2}
    return ProfileBenchmark(
        task="toy",
        threads=2,
        profiles=(
            Profile(
                name="plain",
                precision="float32",
                runtime="onnxruntime",
                texts=1,
                times=KernelTimes(
                    tokens=16, operators_ms=times, load=MachineLoad(other_work=0.0, steal=0.0)
                ),
            ),
        ),
        environment=environment(),
    )


def test_the_table_has_the_slowest_operators_and_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "profiles.json"
    path.write_text(made_up().model_dump_json())
    text = profile_block("profiles.json", path)
    row = "| plain, float32 | ONNX Runtime | 1 x 16 tokens | 9.80 | 1.00x | "
    assert row + "MatMul 6.00, Softmax 3.00, others 0.80 |" in text
    assert "threads: 2" in text and "Raw: `profiles.json`" in text


def test_the_command_writes_what_it_measured(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def measured(
        artifacts: list[Artifact], task: Task, runtimes: list[str], config: LatencyConfig
    ) -> ProfileBenchmark:
        asked.append(runtimes)
        return made_up()

    monkeypatch.setattr(benchmark, "recorded_task", lambda artifact, changes: task)
    monkeypatch.setattr(benchmark, "measure_profiles", measured)
    app, out = typer.Typer(), tmp_path / "profiles.json"
    app.command()(benchmark.run)
    words = [str(exported.path), "--out", str(out), "--noisy", "--runtime", "onnxruntime, openvino"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "plain in onnxruntime, 1 x 16: MatMul 6.00 ms, Softmax 3.00 ms, Gather 0.60 ms" in (
        done.output
    )
    assert [*map(list, asked)] == [["onnxruntime", "openvino"]]
    assert ProfileBenchmark.model_validate_json(out.read_text()) == made_up()
