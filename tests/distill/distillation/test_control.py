"""`distill --control`: the same student on labels alone, trained after the student."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bertender.cli.findings import control_lines
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.findings import ControlFindings
from bertender.problems.multi_label_classification import MULTI_LABEL
from bertender.tasks.task import Split, Task
from bertender.training.checkpoint import weights_digest
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import (
    MOST_EPOCHS,
    control_epochs,
    control_of,
    distill,
    distillation_cost,
    equal_epochs,
    teacher_layers_of,
    weights_that_run,
)
from distill.distillation.on_task import OnTask
from distill.methods import METHODS
from tests.distill.distillation.settings import OF_METHOD, SHORT
from tests.front import last_line, succeed
from tests.listening import interrupted_at, listed_steps, no_training
from tests.toy_kinds import TASKS
from tests.toy_models import save_encoder, tiny_classifier

SETTINGS: dict[str, Any] = {
    **SHORT,
    "method": "minibert",
    "hidden_size": 24,
    "heads": 4,
    "feed_forward_size": 48,
    "learning_rate": 1e-3,
    "checkpoint_steps": 5,
}
"""A student that starts untrained: after one epoch it knows nothing, after three nearly all."""
ON_LABELS = {"weights": {"soft": 0, "hard": 1}}
LENGTHS = (1, 3)
IN_THE_SECOND_CONTROL = 30
"""A step of a run; an epoch has 12 or more."""


@dataclass(frozen=True)
class Students:
    """Two of the same settings."""

    alone: Artifact
    controlled: Artifact

    @property
    def control(self) -> ControlFindings:
        findings = self.controlled.card.findings.control
        assert findings is not None
        return findings


@pytest.fixture(scope="module")
def students(
    trained_teacher: Artifact, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> Students:
    folder = tmp_path_factory.mktemp("students")
    made = [
        distill(trained_teacher, task, DistillConfig(**SETTINGS, control=control), folder / name)
        for name, control in (("alone", False), ("controlled", True))
    ]
    return Students(*made)


def test_a_control_changes_no_byte_of_the_student(students: Students) -> None:
    alone, controlled = students.alone.card, students.controlled.card
    assert alone.files == controlled.files
    assert alone.findings == controlled.findings.model_copy(update={"control": None})
    assert alone.findings.control is None


def test_the_control_is_compared_on_the_held_out_texts(students: Students, task: Task) -> None:
    control, scores = students.control, students.controlled.card.findings.scores
    assert scores is not None
    assert control.gain.value == pytest.approx(100 * (scores.score - control.score))
    assert control.gain.low <= control.gain.value <= control.gain.high
    assert control.n == len(task.dev)
    training = students.controlled.card.findings.training
    assert training is not None
    assert {task.metric: control.choice} == training.epochs[-1]


def test_the_better_of_both_lengths_counts(students: Students) -> None:
    control = students.control
    assert tuple(run.epochs for run in control.runs) == LENGTHS
    assert control.equal_epochs == LENGTHS[-1]
    best = max(run.score for run in control.runs)
    assert control.epochs == next(run.epochs for run in control.runs if run.score == best)
    assert len({run.score for run in control.runs}) == 2


def test_a_control_is_what_a_run_on_labels_alone_gives(
    students: Students, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    for run in students.control.runs:
        config = DistillConfig(**{**SETTINGS, **ON_LABELS, "epochs": run.epochs})
        on_labels = distill(trained_teacher, task, config, tmp_path / "student").card.findings
        assert on_labels.training is not None
        assert on_labels.training.epochs[-1] == {task.metric: run.score}


def test_a_control_of_sets_decides_by_its_own_thresholds(
    teacher_of: Callable[[str], Artifact], tmp_path: Path
) -> None:
    kind = MULTI_LABEL.name
    teacher, sets = teacher_of(kind), TASKS[kind]
    config = {**SETTINGS, "epochs": 2, "control": True}
    found = distill(teacher, sets, DistillConfig(**config), tmp_path / "student").card.findings
    assert found.control is not None
    config = {**SETTINGS, **ON_LABELS, "epochs": found.control.epochs}
    alone = distill(teacher, sets, DistillConfig(**config), tmp_path / "alone").card.findings
    assert alone.scores is not None
    assert found.control.score == pytest.approx(alone.scores.score)


def test_the_command_and_show_report_it(students: Students) -> None:
    sentences = control_lines(students.controlled.card.findings)
    shown = succeed("show", students.controlled.path).stdout.splitlines()
    assert shown[2 : 2 + len(sentences)] == [f"  {each}" for each in sentences]
    said = last_line(succeed("show", students.controlled.path, "--json"))
    assert said[0]["findings"]["control"] == students.control.model_dump(mode="json")


@pytest.fixture
def killed(trained_teacher: Artifact, task: Task, tmp_path: Path) -> Path:
    """Where a run was to write its student that was killed in its second control."""
    config = DistillConfig(**SETTINGS, control=True)
    with interrupted_at(IN_THE_SECOND_CONTROL) as steps, pytest.raises(KeyboardInterrupt):
        distill(trained_teacher, task, config, tmp_path / "killed")
    assert steps[-1].description == "control of 3 epochs"
    return tmp_path / "killed"


def test_a_killed_run_goes_on_in_its_control(
    killed: Path, students: Students, trained_teacher: Artifact, task: Task
) -> None:
    with listed_steps() as steps:
        again = distill(trained_teacher, task, DistillConfig(**SETTINGS, control=True), killed)
    assert {step.description for step in steps} == {"control of 3 epochs"}
    assert steps[0].number > 0
    assert again.digest == students.controlled.digest
    assert not killed.with_name(".killed.work").exists()


def test_a_killed_run_goes_on_without_its_control(
    killed: Path, students: Students, trained_teacher: Artifact, task: Task
) -> None:
    with no_training():
        again = distill(trained_teacher, task, DistillConfig(**SETTINGS), killed)
    assert again.digest == students.alone.digest


CONTROLLED = [name for name, row in METHODS.items() if row.learns_from_teacher]


@pytest.mark.parametrize("method", CONTROLLED)
def test_a_control_starts_where_its_student_does(
    method: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings = {**SHORT, **OF_METHOD.get(method, {}), "method": method, "control": True}
    if METHODS[method].student.wants_own_start:
        settings["student"] = str(save_encoder("bert", tmp_path / "encoder"))
    config = DistillConfig.parse(settings)
    ready = OnTask(trained_teacher, task, config)
    control, changed = control_of(trained_teacher, task, config, epochs=7)
    students = [each.student for each in (ready, control)]
    assert [type(student) for student in students] == [type(students[0])] * 2
    assert weights_digest(students[0]) == weights_digest(students[1])
    (phase,) = control.phases
    assert not phase.needs and not phase.uses_teacher_layers
    assert changed.epochs == 7 and not control.cached


@pytest.mark.parametrize(
    "settings",
    [{}, {"teacher_layers": "first"}, {"teacher_layers": (0, 2)}],
    ids=["alternating", "first", "by number"],
)
def test_what_the_flags_make_starts_as_the_control(
    settings: dict[str, Any], trained_teacher: Artifact, task: Task
) -> None:
    whole = {**SHORT, "layers": 2, "vocab_size": "all"}
    config = DistillConfig.parse({**whole, **settings, "control": True})
    control, _ = control_of(trained_teacher, task, config, epochs=1)
    flags = {"method": "hard", "teacher_layers": teacher_layers_of(config)}
    hard = OnTask(trained_teacher, task, DistillConfig.parse({**whole, **flags}))
    ours, theirs = (weights_digest(each.student) for each in (control, hard))
    assert ours == theirs


@pytest.mark.parametrize(
    ("settings", "layers"),
    [
        ({"method": "pkd"}, "first"),
        ({"method": "tinybert"}, "spread"),
        ({"method": "tinybert", "hidden_size": 16}, None),
        ({"method": "bilstm"}, None),
        ({"method": "albert"}, None),
        ({"student": "an-encoder"}, None),
        ({"student": "an-encoder", "layers": 2}, "spread"),
    ],
)
def test_layers_are_said_where_a_student_takes_some(
    settings: dict[str, Any], layers: str | None
) -> None:
    assert teacher_layers_of(DistillConfig.parse(settings)) == layers


def test_a_control_learns_from_the_labelled_texts_alone(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("a plum\na saw\n")
    more = {"unlabelled": tmp_path / "more.txt", "augmentation": "bilstm"}
    others = {"more_teachers": (trained_teacher.path,), "weights": {"cosine": 0}}
    config = DistillConfig.parse({**SHORT, **more, **others, "control": True})
    control, _ = control_of(trained_teacher, task, config, epochs=1)
    assert control.texts.task.train == task.train
    assert len(control.texts.teachers) == 1


def test_a_control_without_labels_is_refused_before_a_training(
    trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    (tmp_path / "more.txt").write_text("a plum\na saw\n")
    config = DistillConfig(**SETTINGS, unlabelled=tmp_path / "more.txt", control=True)
    unlabelled = replace(task, train=Split((), ()))
    with pytest.raises(ConfigError, match=r"control=True: .* no labelled texts"), no_training():
        distill(trained_teacher, unlabelled, config, tmp_path / "student")
    assert [path.name for path in tmp_path.iterdir()] == ["more.txt"]


ITS_OWN_CONTROL: dict[str, dict[str, Any]] = {
    "hard": {"method": "hard"},
    "labels alone": {"method": "minibert", **ON_LABELS},
    "small-vocab": {"method": "small-vocab"},
}


@pytest.mark.parametrize("case", ITS_OWN_CONTROL)
def test_what_learns_from_labels_alone_is_its_own_control(case: str) -> None:
    with pytest.raises(ConfigError, match=r"control=True: method .* is its own control"):
        DistillConfig.parse({**ITS_OWN_CONTROL[case], "control": True})
    assert not DistillConfig.parse({**ITS_OWN_CONTROL[case], "control": False}).control


COSTS: dict[str, tuple[dict[str, Any], tuple[int, int], tuple[int, int]]] = {
    "in each step": ({}, (3 * 2, 2), (0, 0)),
    "cached once": ({"method": "pkd"}, (3 * 2, 1), (0, 0)),
    "two phases": ({"method": "tinybert", "earlier_epochs": 4}, (3 * 6, 4 + 1), (0, 0)),
    "its layers": ({"method": "theseus"}, (3 * 2, 2), (0, 0)),
    "unlabelled texts": ({"method": "pkd", "unlabelled": True}, (3 * 2, 1), (3 * 2, 1)),
    "too large to cache": ({"method": "pkd", "teacher_cache_mb": 0}, (3 * 2, 2), (0, 0)),
}
"""Settings, and how often a labelled and an unlabelled text pass the student and the teacher."""


@pytest.mark.parametrize("case", COSTS)
def test_computation_counts_each_text_as_often_as_a_model_reads_it(
    case: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    settings, labelled, unlabelled = COSTS[case]
    if "unlabelled" in settings:
        (tmp_path / "more.txt").write_text("a plum\na saw\na pear\n")
        settings = {**settings, "unlabelled": tmp_path / "more.txt"}
    config = DistillConfig.parse({**SHORT, "epochs": 2, **settings})
    ready = OnTask(trained_teacher, task, config)
    models = (ready.student, ready.teacher)
    student, teacher = (weights_that_run(model) for model in models)
    assert teacher == 2 * student
    texts = len(task.train)
    passes = [texts * each + 3 * more for each, more in zip(labelled, unlabelled, strict=True)]
    cost = distillation_cost(ready, config)
    assert cost == passes[0] * student + passes[1] * teacher
    equal = equal_epochs(ready, config)
    assert 3 * student * texts * (equal - 1) < cost <= 3 * student * texts * equal


def test_shared_layers_count_as_often_as_they_run() -> None:
    once, twice = (tiny_classifier("albert", num_hidden_layers=depth) for depth in (1, 2))
    assert once.num_parameters() == twice.num_parameters()
    assert weights_that_run(twice) == 2 * weights_that_run(once)


def test_of_unknown_layers_all_but_the_embeddings_count() -> None:
    model = tiny_classifier("gpt2", n_embd=8, n_layer=2, n_head=2)
    embeddings = sum(each.weight.numel() for each in (model.transformer.wte, model.transformer.wpe))
    assert weights_that_run(model) == model.num_parameters() - embeddings


@pytest.mark.parametrize(
    ("of_method", "equal", "lengths"),
    [(3, 3, [3]), (3, 8, [3, 8]), (3, 57, [3, MOST_EPOCHS]), (30, 57, [30])],
)
def test_lengths_of_controls(of_method: int, equal: int, lengths: list[int]) -> None:
    assert list(control_epochs(of_method, equal)) == lengths
