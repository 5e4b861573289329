"""Timing by name: in this process, and in fresh ones that know nothing but their request."""

from __future__ import annotations

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, MachineBusyError, ModelError
from bertender.measure import fresh
from bertender.measure.fresh import TimedModel, TimingRequest, measure_models
from bertender.measure.latency import LatencyConfig, LatencyReport
from bertender.measure.load import MachineLoad
from bertender.tasks.task import Task

CONFIG = LatencyConfig(
    single_texts=3,
    batch_size=4,
    processes=2,
    rounds=2,
    warmup_rounds=0,
    warmup_texts=0,
    threads=1,
    noisy=True,  # a fresh process sees the machine as it is
)


@pytest.fixture
def models(teacher: Artifact) -> list[TimedModel]:
    return [TimedModel(name=name, artifact=teacher.path) for name in ("first", "second")]


@pytest.mark.slow
def test_fresh_processes_time_every_row(
    models: list[TimedModel], task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    report = measure_models(models, task.dev.examples, CONFIG)
    assert [row.name for row in report.rows] == ["first", "second"]
    assert report.noise_floor and report.noise_floor.name == "first"
    for row in (*report.rows, report.noise_floor):
        assert [len(rounds) for rounds in row.single_ms] == [2, 2]
        assert {len(texts) for rounds in row.single_ms for texts in rounds} == {3}
        assert [len(batches) for batches in row.batch_ms] == [2, 2]
    assert report.config == CONFIG and report.load is not None
    assert LatencyReport.model_validate_json(report.model_dump_json()) == report


@pytest.mark.slow
def test_a_process_that_ends_without_a_result_says_why(
    models: list[TimedModel], task: Task, tmp_path: Path
) -> None:
    gone = models[0].model_copy(update={"artifact": tmp_path / "gone"})
    with pytest.raises(ModelError, match=r"3 rows ended with status 1: .*gone.*--processes 1"):
        measure_models([gone, models[0]], task.dev.examples, CONFIG)


def test_one_process_is_this_one(
    models: list[TimedModel], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh.subprocess, "run", lambda *given, **more: pytest.fail("another"))
    config = CONFIG.model_copy(update={"processes": 1})
    report = measure_models(models, task.dev.examples, config)
    assert [len(row.single_ms) for row in report.rows] == [1, 1] and report.noise_floor


def test_no_models_are_an_error(task: Task) -> None:
    with pytest.raises(ConfigError, match="no models"):
        measure_models([], task.dev.examples, CONFIG)


def test_a_process_that_was_disturbed_is_refused_at_once(
    models: list[TimedModel], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The busiest process judges the whole, and nobody waits for those after it."""
    numbers = []

    def timed(command: list[str], **settings: Any) -> CompletedProcess[str]:
        request = TimingRequest.model_validate_json(settings["input"])
        numbers.append(request.process)
        shares = {0: 0.01, 1: 0.2, 2: 0.02}
        load = MachineLoad(other_work=shares[request.process], steal=0.0)
        report = request.run().model_copy(update={"load": load})
        Path(command[-1]).write_text(report.model_dump_json(), encoding="utf-8")
        return CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(fresh.subprocess, "run", timed)
    quiet = CONFIG.model_copy(update={"processes": 3, "noisy": False})
    with pytest.raises(MachineBusyError, match=r"20\.0%"):
        measure_models(models, task.dev.examples, quiet)
    assert numbers == [0, 1]
    noisy = measure_models(models, task.dev.examples, quiet.model_copy(update={"noisy": True}))
    assert noisy.load == MachineLoad(other_work=0.2, steal=0.0)
    assert noisy.config.processes == len(noisy.rows[0].single_ms) == 3
