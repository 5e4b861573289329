"""The embedded recipe `quickstart` from end to end, real server included, at toy size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertender.comparison.records import Comparison
from bertender.core.artifact import Artifact
from bertender.recipes.recipe import load_recipe
from bertender.tasks.docs import TRAIN_A_CLASS
from bertender.tasks.docstrings import SECTIONS
from bertender.tasks.task import Task
from serve.check import EndpointCheck
from tests.front import last_line, succeed, write_toy_files

pytestmark = [pytest.mark.slow, pytest.mark.server]

SETTINGS = {
    "task.task": "toy",
    "task.text_column": "text",
    "teacher.epochs": 6,
    "teacher.batch_size": 16,
    "teacher.learning_rate": 3.0e-3,
    "student.layers": 1,
    "student.epochs": 6,
    "student.batch_size": 16,
    "student.learning_rate": 3.0e-3,
    "table.processes": 1,
    "table.rounds": 2,
    "table.single_texts": 4,
    "table.threads": 1,
    "endpoint.texts": 5,
}
TEACHER_LAYERS = 6
MOST_TEXTS = 22_000
"""A core without AMX trained a 6-layer encoder on 109 texts a CPU second: 200 CPU seconds."""
ARTIFACTS = {
    "bag-of-words": "bag-of-words",
    "teacher": "torch",
    "student": "torch",
    "student-onnx": "onnx",
    "student-int8": "onnx",
}


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory, task: Task, teacher: Artifact) -> list[str]:
    """The command line of the run."""
    folder = tmp_path_factory.mktemp("quickstart")
    files = write_toy_files(folder, task)
    settings = {**SETTINGS, "task.train": files.train, "task.dev": files.dev}
    settings["student.student"] = str(teacher.path)
    changes = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [
        "run",
        "quickstart",
        "--teacher",
        str(teacher.path),
        "--out",
        str(folder / "run"),
        *changes,
    ]


@pytest.fixture(scope="module")
def first(words: list[str]) -> dict[str, Any]:
    """What the first run says."""
    said = last_line(succeed(*words, "--json"))
    assert isinstance(said, dict)
    return said


@pytest.fixture
def out(first: dict[str, Any]) -> Path:
    return Path(first["out"])


def test_every_step_ran_and_left_its_output(first: dict[str, Any], out: Path) -> None:
    steps = load_recipe("quickstart").steps
    assert [step["step"] for step in first["steps"]] == [step.name for step in steps]
    assert not any(step["reused"] for step in first["steps"])
    reports = {"parity.json", "table.json", "endpoint.json"}
    assert {path.name for path in out.iterdir()} == {*ARTIFACTS, *reports, ".stamps"}
    for name, kind in ARTIFACTS.items():
        assert Artifact.load(out / name).card.kind == kind


def test_the_student_is_smaller_than_the_teacher_and_knows_the_task(out: Path) -> None:
    teacher, student = (Artifact.load(out / name).card for name in ("teacher", "student"))
    assert student.family == teacher.family and student.precision == "float32"
    assert student.findings.parameters < teacher.findings.parameters
    assert student.findings.training.epochs[-1]["accuracy"] > 0.9


def test_the_table_has_a_row_each(out: Path) -> None:
    comparison = Comparison.model_validate_json((out / "table.json").read_text())
    rows = {row.name: row for row in comparison.rows}
    assert list(rows) == ["teacher", "bag-of-words", "student-onnx", "student-int8"]
    assert comparison.circumstances.n == 32
    for name, row in rows.items():
        assert row.digest == Artifact.load(out / name).digest
        assert row.score.value > 0.9, "the toy task is easy"
        assert row.latency.single.p50_ms > 0
    assert rows["student-int8"].size.model_size_bytes < rows["student-onnx"].size.model_size_bytes
    assert {name for name, row in rows.items() if row.parity} == {"student-onnx", "student-int8"}
    assert all(row.parity.passed for row in comparison.rows if row.parity)


def test_parity_is_over_all_held_out_texts(out: Path) -> None:
    parity = json.loads((out / "parity.json").read_text())
    assert parity["failures"] == [] and parity["texts"] >= 32
    assert (parity["reference"], parity["candidate"]) == ("student", "student-int8")


def test_the_endpoint_answered_as_the_local_model(out: Path, task: Task) -> None:
    check = EndpointCheck.model_validate_json((out / "endpoint.json").read_text())
    assert len(check.served) == 5
    assert check.max_abs_difference < 1e-5
    labels = dict(zip(task.dev.examples, task.dev.label_ids, strict=True))
    for row in check.served:
        assert row.true_label == task.labels[labels[row.text]]
        assert row.true_label == row.answer.label, "the toy task is easy"


def test_the_demo_stays_within_its_budget_of_training() -> None:
    """Texts x epochs, the teacher's and a part of the student's, which has fewer layers."""
    settings = {step.name: step.settings for step in load_recipe("quickstart").steps}
    teacher, student = settings["teacher"], settings["student"]
    assert load_recipe("quickstart").task == {"task": "docs"}
    labelled = TRAIN_A_CLASS * len(SECTIONS)
    of_student = (labelled + student["unlabelled_texts"]) * student["epochs"]
    share = student["layers"] / TEACHER_LAYERS
    assert labelled * teacher["epochs"] + of_student * share <= MOST_TEXTS


def test_the_second_run_reuses_all_but_the_endpoint(words: list[str], out: Path) -> None:
    before = {name: Artifact.load(out / name).digest for name in ARTIFACTS}
    result = succeed(*words)
    done = [line for line in result.stdout.splitlines() if ": done in " in line]
    assert len(done) == 1 and "endpoint.json" in done[0]
    assert result.stdout.count(": unchanged, reused") == 7
    assert "5 of 5 labelled as in the data" in result.stdout
    assert "served by Triton and stopped" in result.stdout
    assert "student-int8 in place of teacher: " in result.stdout
    for command in load_recipe("quickstart").next:
        assert f"  {command}\n" in result.stdout
    assert {name: Artifact.load(out / name).digest for name in ARTIFACTS} == before
