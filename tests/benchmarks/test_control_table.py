"""The table of controls: lengths and the stronger control chosen where nothing is scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.controls import reading as readings
from benchmarks.controls.measuring import ControlBenchmark, TrainedStudent
from benchmarks.controls.reading import controls_reading
from benchmarks.controls.table import (
    average_gain,
    average_gain_of_the_better,
    control_block,
    read_students,
)
from bertender.core.environment import environment
from bertender.metrics.scores import score

LABELS = (0, 1) * 50
CHOICES = {"hard-1": 0.7, "hard-3": 0.8, "hard-encoder-1": 0.9, "hard-encoder-3": 0.6}
WRONG = {"hard-1": 10, "hard-3": 30, "hard-encoder-1": 20, "hard-encoder-3": 5, "distilbert": 8}
"""Of 100 texts; what scores best is not what the texts to choose by prefer."""


def _student(way: str, seed: int) -> TrainedStudent:
    wrong = WRONG[way] + seed
    predictions = tuple(1 - label if place < wrong else label for place, label in enumerate(LABELS))
    reached = score("accuracy", LABELS, predictions)
    choice = reached.model_copy(update={"value": CHOICES.get(way, 0.5)})
    return TrainedStudent(
        way=way,
        seed=seed,
        processor_s=60.0 if way.endswith("3") else 20.0,
        choice=choice,
        score=reached,
        predictions=predictions,
    )


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    made = {}
    for task in ("one", "two"):
        benchmark = ControlBenchmark(
            task=task,
            metric="accuracy",
            labels=LABELS,
            label_names=("a", "b"),
            train_texts=100,
            teacher=score("accuracy", LABELS, LABELS),
            shared={"epochs": 4, "learning_rate": 1e-4, "layers": 3},
            chosen_on="selection",
            environment=environment(),
            students=tuple(_student(way, seed) for way in WRONG for seed in range(2)),
        )
        made[f"{task}.json"] = tmp_path / f"{task}.json"
        made[f"{task}.json"].write_text(benchmark.model_dump_json(), encoding="utf-8")
    return made


def test_what_stands_for_a_control_is_chosen_apart_from_its_score(files: dict[str, Path]) -> None:
    for task in read_students([*files.values()]):
        assert task.chosen == {"hard": "hard-3", "hard-encoder": "hard-encoder-1"}
        assert task.stronger == "hard-encoder"


def test_averages_are_over_tasks_and_seeds(files: dict[str, Path]) -> None:
    tasks = read_students([*files.values()])
    for control, points in {"hard": 22.0, "hard-encoder": 12.0, None: 12.0}.items():
        gained = average_gain(tasks, "distilbert", control)
        assert gained.value == pytest.approx(points)
        assert gained.low < points < gained.high


def test_the_table_has_both_controls_and_every_way_of_all_tasks(files: dict[str, Path]) -> None:
    lines = control_block(files).splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| `")]
    assert [row[0].strip("| ") for row in rows] == ["`hard`", "`hard-encoder`", "`distilbert`"]
    hard, encoder, distilbert = rows
    assert hard[1] == "3.0x" and encoder[1] == distilbert[1] == "1.0x"
    assert encoder[2].endswith("the stronger control")
    assert distilbert[2].startswith("0.915, +12.0 [")
    assert hard[4] == "-" and distilbert[4].startswith("+22.0 [")


def test_the_reading_says_what_pays_and_where(files: dict[str, Path]) -> None:
    words = controls_reading(files)
    assert "- `distilbert`: +12.0 [" in words
    assert "above 0 on one and two, below 0 on none" in words
    assert "scores best on the texts to choose by" not in words  # there is one way


def test_the_texts_to_choose_by_decide_between_a_way_and_the_control(
    files: dict[str, Path],
) -> None:
    tasks = read_students([*files.values()])
    for way in ("distilbert", "hard"):
        expected = [
            max((way, task.stronger), key=lambda name: task.of(name)[0].choice.value)
            for task in tasks
        ]
        assert [task.better(way) for task in tasks] == expected
    assert average_gain_of_the_better(tasks, "hard").value == 0, "the stronger control is taken"
    assert "which they take on " in controls_reading(files)


@pytest.mark.parametrize(("least", "word"), [(12.0, "reached"), (12.1, "missed")])
def test_the_reading_judges_the_best_by_the_aim(
    least: float, word: str, files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readings, "LEAST_GAIN", least)
    assert f"with an interval above 0: it is {word}." in controls_reading(files)
