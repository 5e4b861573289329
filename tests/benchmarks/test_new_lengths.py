"""First texts of each length: every runtime is timed in a fresh process, and the table says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.new_lengths import measuring as benchmark
from benchmarks.new_lengths.measuring import (
    LATER_RUNS,
    NewLengths,
    NewLengthsBenchmark,
    measure_new_lengths,
    time_lengths,
)
from benchmarks.new_lengths.table import new_lengths_block, times_longer
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import DataError, ModelError
from bertender.core.machine_load import MachineLoad
from bertender.measure.latency import LatencyConfig
from bertender.tasks.task import Task

QUICK = LatencyConfig(threads=1, noisy=True)


def test_a_text_of_every_length_is_timed_for_the_first_time_and_later(
    exported: Artifact, task: Task
) -> None:
    row = time_lengths(exported.path, "onnxruntime", task.dev.examples, QUICK)
    assert (row.name, row.runtime) == (exported.name, "onnxruntime")
    assert len({*row.tokens}) == len(row.tokens) == len(row.first_ms) > 1
    assert [len(run) for run in row.later_ms] == [len(row.tokens)] * LATER_RUNS
    assert min(row.first_ms) > 0


def test_texts_of_one_length_are_refused(exported: Artifact) -> None:
    with pytest.raises(DataError, match="all have"):
        time_lengths(exported.path, "onnxruntime", [("one",), ("one",)], QUICK)


@pytest.mark.slow
def test_every_row_has_a_process_of_its_own(exported: Artifact, task: Task) -> None:
    rows = measure_new_lengths([exported], task, ["onnxruntime"], QUICK).rows
    assert [(row.name, row.runtime) for row in rows] == [(exported.name, "onnxruntime")]


def test_a_torch_artifact_is_refused(teacher: Artifact, task: Task) -> None:
    with pytest.raises(ModelError, match="Export it first"):
        measure_new_lengths([teacher], task, ["onnxruntime"], QUICK)


def made_up() -> NewLengthsBenchmark:
    row = NewLengths(
        name="plain",
        precision="float32",
        runtime="onnxruntime",
        tokens=(5, 9, 7),
        first_ms=(6.0, 6.0, 6.0),
        later_ms=((2.0, 3.0, 2.0), (2.0, 9.0, 2.0), (7.0, 3.0, 1.0)),
        load=MachineLoad(other_work=0.0, steal=0.0),
    )
    return NewLengthsBenchmark(task="toy", threads=2, rows=(row,), environment=environment())


def test_the_table_compares_each_text_with_itself(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(made_up().model_dump_json())
    text = new_lengths_block("lengths.json", path)
    assert "| plain, float32 | ONNX Runtime | 6.00 | 2.00 | 3.00x [2.00, 3.00] |" in text
    assert "3 texts of toy, one of each length from 5 to 9 tokens" in text
    assert "Raw: `lengths.json`" in text
    assert times_longer(made_up().rows[0]).value == 3


def test_the_command_writes_what_it_measured(
    exported: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "measure_new_lengths", lambda *_: made_up())
    monkeypatch.setattr(benchmark, "recorded_task", lambda *_: task)
    app = typer.Typer()
    app.command()(benchmark.run)
    out = tmp_path / "lengths.json"
    result = CliRunner().invoke(app, [str(exported.path), "--out", str(out), "--noisy"])
    assert result.exit_code == 0, result.output
    assert "plain in onnxruntime: 18.0 ms for all, at first" in result.output
    assert NewLengthsBenchmark.model_validate_json(out.read_text()) == made_up()
