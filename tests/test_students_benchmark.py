"""The benchmark of students: seeds of one name are a row, and choose nothing of their score."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import students
from benchmarks.students import StudentsBenchmark, run
from benchmarks.students_table import change_of, groups_of, read_students, retained, students_block
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.metrics.scores import score
from bertender.tasks.task import Task


@pytest.fixture
def result(
    trained: Artifact, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> StudentsBenchmark:
    apart = replace(task, selection=task.train.first(24))
    monkeypatch.setattr(students, "recorded_task", lambda artifact, changes: apart)
    folders = [tmp_path / name for name in ("small-0", "small-1", "large")]
    for folder in folders:
        shutil.copytree(trained.path, folder)
    out = tmp_path / "result.json"
    run(trained.path, folders, out)
    return read_students(out)


def test_every_model_is_scored_on_both_kinds_of_texts(
    result: StudentsBenchmark, trained: Artifact, task: Task
) -> None:
    assert [each.name for each in result.students] == ["small-0", "small-1", "large"]
    for each in (result.teacher, *result.students):
        assert (each.choice.n, each.score.n) == (24, len(task.dev))
        assert len(each.predictions) == len(result.labels)
        assert each.size.model_size_bytes > 0 and each.stage == trained.card.stage
    assert result.chosen_on == "selection"


def test_seeds_of_one_name_are_a_group(result: StudentsBenchmark) -> None:
    first, second, third = result.students
    groups = groups_of(result)
    assert groups == {"small": [first, second], "large": [third]}
    wrong = tuple(1 - label for label in result.labels)
    failed = first.model_copy(
        update={"predictions": wrong, "score": score(result.metric, result.labels, wrong)}
    )
    assert retained([failed], result) == 0
    assert retained([failed, second], result) == pytest.approx(retained([second], result) / 2)
    change = change_of([failed, second], result)
    assert change.low < change.value < 0, "seeds that differ widen the interval"


def test_the_table_says_what_rows_differ_by(result: StudentsBenchmark, tmp_path: Path) -> None:
    changed = [
        each.model_copy(update={"settings": {**each.settings, "epochs": 9, "seed": place}})
        if each.name == "large"
        else each
        for place, each in enumerate(result.students)
    ]
    path = tmp_path / "changed.json"
    path.write_text(result.model_copy(update={"students": tuple(changed)}).model_dump_json())
    rows = {
        line.split(" | ")[0].strip("| "): line
        for line in students_block("a.json", path).split("\n")
    }
    assert "`epochs=9`" in rows["large"] and "`epochs=" in rows["small"]
    assert "seed=" not in rows["large"] and "`batch_size" not in rows["large"]
    scores = ", ".join(f"{each.score.value:.3f}" for each in result.students[:2])
    assert "| 2 | " in rows["small"] and f"| {scores} |" in rows["small"]
    assert result.teacher.name in rows


def test_no_folder_of_this_machine_is_recorded(result: StudentsBenchmark) -> None:
    assert "/" not in str([each.settings for each in (result.teacher, *result.students)])


def test_models_of_one_name_or_another_task_are_refused(trained: Artifact, tmp_path: Path) -> None:
    copy = tmp_path / trained.name
    shutil.copytree(trained.path, copy)
    with pytest.raises(ConfigError, match="two artifacts are called"):
        run(trained.path, [copy], tmp_path / "out.json")
    assert not (tmp_path / "out.json").exists()
