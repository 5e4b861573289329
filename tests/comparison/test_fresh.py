"""Timing by name: in this process, and in fresh ones that know nothing but their request."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bertender.comparison import latency
from bertender.comparison import latency as fresh
from bertender.comparison import latency as line_process
from bertender.comparison.latency import (
    TakeTurn,
    TimedModel,
    TimingRequest,
    Turns,
    measure_models,
    open_engines,
)
from bertender.comparison.records import LatencyConfig, LatencyReport
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, MachineBusyError, ModelError
from bertender.core.machine import MachineLoad
from bertender.models.classifier import onnx_file
from bertender.tasks.task import Task
from tests.runtimes import needs

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


BOTH = ("onnxruntime", "openvino")


@pytest.mark.slow
@needs("openvino")
def test_each_engine_has_a_process_and_all_rows_take_turns(
    models: list[TimedModel], plain_export: Any, task: Task
) -> None:
    graph = onnx_file(plain_export("bert")[1])
    in_runtimes = [
        models[0].model_copy(update={"name": runtime, "graph": graph, "runtime": runtime})
        for runtime in BOTH
    ]
    request = TimingRequest(
        models=(*models, *in_runtimes),
        examples=task.dev.examples,
        config=CONFIG,
        max_length=None,
        process=0,
    )
    assert request.by_engine() == [[0, 1], [2], [3]]
    with open_engines(request) as take:
        turns = [take(row, 0) for row in (3, 0, 2, 1)]
    assert [len(turn.single_ms) for turn in turns] == [3] * 4
    report = measure_models(request.models, task.dev.examples, CONFIG)
    assert [row.name for row in report.rows] == ["first", "second", *BOTH]


@pytest.mark.slow
def test_a_process_that_ends_without_a_result_says_why(
    models: list[TimedModel], task: Task, tmp_path: Path
) -> None:
    shutil.copytree(models[0].artifact, tmp_path / "gone")
    (tmp_path / "gone" / "model.safetensors").unlink()
    gone = models[0].model_copy(update={"artifact": tmp_path / "gone"})
    with pytest.raises(ModelError, match=r"3 rows ended with status 1: .*gone.*--processes 1"):
        measure_models([gone, models[0]], task.dev.examples, CONFIG)


def test_one_process_is_this_one(
    models: list[TimedModel], task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        line_process.subprocess, "Popen", lambda *given, **more: pytest.fail("another")
    )
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
    numbers: list[int] = []

    @contextmanager
    def opened(request: TimingRequest) -> Iterator[TakeTurn]:
        numbers.append(request.process)
        yield Turns(request.classifiers(), request.examples, request.config, 0).take

    @contextmanager
    def watched(noisy: bool) -> Iterator[Any]:
        assert noisy, "the load is judged where the repetitions are merged"
        share = {0: 0.01, 1: 0.2, 2: 0.02}[numbers[-1]]
        yield LatencyReport.model_construct(load=MachineLoad(other_work=share, steal=0.0))

    monkeypatch.setattr(fresh, "open_engines", opened)
    monkeypatch.setattr(latency, "watched_load", watched)
    quiet = CONFIG.model_copy(update={"processes": 3, "noisy": False})
    with pytest.raises(MachineBusyError, match=r"20\.0%"):
        measure_models(models, task.dev.examples, quiet)
    assert numbers == [0, 1]
    noisy = measure_models(models, task.dev.examples, quiet.model_copy(update={"noisy": True}))
    assert noisy.load == MachineLoad(other_work=0.2, steal=0.0)
    assert noisy.config.processes == len(noisy.rows[0].single_ms) == 3
