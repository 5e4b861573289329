"""The benchmark of controls: ways and controls on one task, scored where nothing chose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import controls
from benchmarks.controls import CONTROLS, WAYS, ControlBenchmark, run
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.tasks.task import Task

SHARED = {"epochs": 4, "learning_rate": 1e-4, "layers": 3, "batch_size": 32}


def test_every_way_is_a_config_and_every_control_learns_from_labels(trained: Artifact) -> None:
    configs = {name: way.config(trained, SHARED, 2) for name, way in WAYS.items()}
    assert {each.seed for each in configs.values()} == {2}
    assert {name for name, way in WAYS.items() if configs[name].method == "hard"} == {
        name for name, way in WAYS.items() if way.control in CONTROLS
    }


def test_a_control_has_several_lengths(trained: Artifact) -> None:
    for control in CONTROLS:
        lengths = [
            way.config(trained, SHARED, 0).epochs for way in WAYS.values() if way.control == control
        ]
        assert lengths == sorted(set(lengths))
        assert lengths[0] == SHARED["epochs"] < lengths[-1]


def test_one_control_starts_from_the_encoder(trained: Artifact) -> None:
    encoder = trained.card.config["teacher"]
    starts = {way.config(trained, SHARED, 0).student for way in WAYS.values() if way.control}
    assert starts == {None, encoder}


@pytest.mark.parametrize(("ways", "error"), [("none-such", UnknownNameError), (" , ", ConfigError)])
def test_ways_that_are_not_there_are_refused(
    ways: str, error: type[Exception], trained: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(error):
        run(trained.path, tmp_path, None, ways)


def test_a_run_is_scored_and_a_second_one_trains_nothing(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = replace(task, selection=task.train.first(24))
    monkeypatch.setattr(controls, "recorded_task", lambda artifact, changes: apart)
    out, work = tmp_path / "result.json", tmp_path / "work"
    run(trained.path, work, out, "hard-1,static", 2, 1, 3e-3, 2)
    first = ControlBenchmark.model_validate_json(out.read_text(encoding="utf-8"))
    assert [(each.way, each.seed) for each in first.students] == [
        ("hard-1", 0),
        ("static", 0),
        ("hard-1", 1),
        ("static", 1),
    ]
    assert first.chosen_on == "selection"
    assert all(len(each.predictions) == len(first.labels) for each in first.students)
    assert all(each.processor_s > 0 for each in first.students)
    run(trained.path, work, out, "hard-1,static", 2, 1, 3e-3, 2)
    assert json.loads(out.read_text())["students"] == first.model_dump(mode="json")["students"]


def test_a_run_that_was_killed_between_student_and_time_is_said(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "recorded_task", lambda artifact, changes: task)
    run(trained.path, tmp_path, None, "static", 1, 1, 3e-3, 2)
    (place,) = tmp_path.glob("*.seconds")
    place.unlink()
    with pytest.raises(ConfigError, match="a run was killed"):
        run(trained.path, tmp_path, None, "static", 1, 1, 3e-3, 2)
