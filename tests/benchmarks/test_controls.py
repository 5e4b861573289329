"""The benchmark of controls: ways and controls on one task, scored where nothing chose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.controls import measuring as controls
from benchmarks.controls.measuring import ControlBenchmark, TrainedStudent, chosen_lengths, run
from benchmarks.controls.ways_to_train import CONTROLS, ENCODER, FURTHER_TEXTS, STUDENT, WAYS
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.metrics.scores import score
from bertender.tasks.task import Task
from tests.toy_models import save_encoder

SHARED = {"epochs": 4, "learning_rate": 1e-4, "layers": 3, "batch_size": 32}
NAMES = {ENCODER: "an-encoder", STUDENT: "a-student", FURTHER_TEXTS: Path("texts.jsonl")}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_is_a_config_and_controls_alone_learn_from_labels_alone(name: str) -> None:
    way = WAYS[name]
    config = way.config(SHARED, 2, NAMES)
    assert config.seed == 2
    assert (way.control in CONTROLS) == (not config.changed_method().learns_from_teacher)


@pytest.mark.parametrize("control", CONTROLS)
def test_a_control_has_several_lengths(control: str) -> None:
    lengths = [
        way.config(SHARED, 0, NAMES).epochs for way in WAYS.values() if way.control == control
    ]
    assert lengths == sorted(set(lengths))
    assert lengths[0] == SHARED["epochs"] < lengths[-1]


def test_controls_start_from_the_teacher_its_encoder_and_the_student() -> None:
    starts = {way.config(SHARED, 0, NAMES).student for way in WAYS.values() if way.control}
    assert starts == {None, "an-encoder", "a-student"}


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


def test_further_seeds_are_of_the_length_that_the_first_one_chose(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    apart = replace(task, selection=task.train.first(24))
    monkeypatch.setattr(controls, "recorded_task", lambda artifact, changes: apart)
    run(trained.path, tmp_path, tmp_path / "result.json", "hard-1,hard-3", 2, 1, 3e-3, 2)
    text = (tmp_path / "result.json").read_text(encoding="utf-8")
    students = ControlBenchmark.model_validate_json(text).students
    assert [(each.way, each.seed) for each in students[:2]] == [("hard-1", 0), ("hard-3", 0)]
    best = max(students[:2], key=lambda each: each.choice.value).way
    assert [(each.way, each.seed) for each in students[2:]] == [(best, 1)]
    assert chosen_lengths(students) == {"hard": best}


@pytest.mark.parametrize(
    ("choices", "chosen"),
    [
        ({}, {}),
        ({"distilbert": (0.9,)}, {}),
        ({"hard-1": (0.6,), "hard-3": (0.7,)}, {"hard": "hard-3"}),
        # a further seed of the chosen length does not count against it
        ({"hard-1": (0.6,), "hard-3": (0.7, 0.1)}, {"hard": "hard-3"}),
        ({"hard-1": (0.6, 0.6), "hard-3": (0.7, 0.1)}, {"hard": "hard-1"}),
        ({"hard-3": (0.7,), "labels-1": (0.1,)}, {"hard": "hard-3", "labels": "labels-1"}),
    ],
)
def test_a_length_is_chosen_by_the_seeds_that_all_lengths_have(
    choices: dict[str, tuple[float, ...]], chosen: dict[str, str]
) -> None:
    reached = score("accuracy", (0, 1), (0, 1))
    students = [
        TrainedStudent(
            way=way,
            seed=seed,
            processor_s=1.0,
            choice=reached.model_copy(update={"value": value}),
            score=reached,
            predictions=(0, 1),
        )
        for way, values in choices.items()
        for seed, value in enumerate(values)
    ]
    assert chosen_lengths(students) == chosen


@pytest.mark.parametrize(
    ("way", "student"),
    [
        ("pd", None),
        ("hard-1", "all-MiniLM-L6-v2"),
        ("pd-further-texts", "all-MiniLM-L6-v2"),
    ],
)
def test_a_way_without_what_it_needs_is_refused(
    way: str, student: str | None, trained: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"--ways {way}: not with these settings"):
        run(trained.path, tmp_path, None, way, student=student)


def test_further_texts_that_no_way_learns_from_are_refused(
    trained: Artifact, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="none of these ways learns from them"):
        run(trained.path, tmp_path, None, "pd", student="all-MiniLM-L6-v2", further_texts=10)


def test_students_of_another_encoder_learn_from_texts_without_their_labels(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replace(task, selection=task.train.first(24), train=task.train.after(24))
    few = replace(whole, train=whole.train.first(16))
    monkeypatch.setattr(
        controls, "recorded_task", lambda artifact, changes: whole if changes else few
    )
    out, encoder = tmp_path / "result.json", save_encoder("bert", tmp_path / "small")
    ways = ("labels-1", "pd", "pd-further-texts")
    run(trained.path, tmp_path, out, ",".join(ways), 1, 1, 3e-3, 2, str(encoder), 10)
    result = ControlBenchmark.model_validate_json(out.read_text(encoding="utf-8"))
    assert tuple(each.way for each in result.students) == ways
    assert (result.student, result.further_texts) == ("small", 10)
    lines = (tmp_path / "further-texts.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [{*row} for row in rows] == [{"text"}] * 10
    texts = {(row["text"],) for row in rows}
    assert texts <= {*whole.train.examples} - {*few.train.examples}
    with pytest.raises(ConfigError, match=r"has other texts, of another run\. Give another --work"):
        run(trained.path, tmp_path, out, ",".join(ways), 1, 1, 3e-3, 2, str(encoder), 9)


def test_a_run_that_was_killed_between_student_and_time_is_said(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controls, "recorded_task", lambda artifact, changes: task)
    run(trained.path, tmp_path, None, "static", 1, 1, 3e-3, 2)
    (place,) = tmp_path.glob("*.seconds")
    place.unlink()
    with pytest.raises(ConfigError, match="how long it took is not there"):
        run(trained.path, tmp_path, None, "static", 1, 1, 3e-3, 2)
