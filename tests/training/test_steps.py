"""Listeners hear of each step of a training run, whichever stage runs it, and may end it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.tasks.task import Task
from bertender.training.loop import TrainingReport, listen_to_steps, planned, train
from distill.finetuning.config import FinetuneConfig
from distill.finetuning.finetune import finetune_by_name
from tests.listening import interrupted_at, listed_steps
from tests.training.runs import CONFIG, classification

SHORT = CONFIG.model_copy(update={"epochs": 1})


def trained(work: Path) -> TrainingReport:
    start = classification()
    return train(start.model, start.examples, start.objective, SHORT, work, description="a toy run")


def test_each_step_is_heard_with_its_batch_and_losses(tmp_path: Path) -> None:
    with listed_steps() as steps:
        report = trained(tmp_path)
    assert [step.number for step in steps] == list(range(report.steps))
    assert {(step.steps, step.description, step.work) for step in steps} == {
        (report.steps, "a toy run", tmp_path)
    }
    examples = classification().examples
    lengths = [[examples.lengths[row] for row in rows] for rows in planned(examples, SHORT).batches]
    assert [step.batch["attention_mask"].sum(1).tolist() for step in steps] == lengths
    assert not any(loss.requires_grad for step in steps for loss in step.losses.values())
    read = [{name: round(float(loss), 6) for name, loss in step.losses.items()} for step in steps]
    assert [read[0], read[-1]] == report.losses, "which holds the first and the last one"


def test_a_listener_changes_nothing_of_the_run(tmp_path: Path) -> None:
    quiet = trained(tmp_path / "quiet")
    with listen_to_steps(lambda step: None):
        assert trained(tmp_path / "heard") == quiet


def test_listeners_are_nested_and_leave_with_their_block(tmp_path: Path) -> None:
    heard: list[str] = []
    with listen_to_steps(lambda step: heard.append("outer")):
        with listen_to_steps(lambda step: heard.append("inner")):
            steps = trained(tmp_path / "both").steps
        assert heard == ["outer", "inner"] * steps
        trained(tmp_path / "outer")
    trained(tmp_path / "nobody")
    assert heard[2 * steps :] == ["outer"] * steps


def test_a_listener_that_raises_ends_the_run_which_then_goes_on(tmp_path: Path) -> None:
    with interrupted_at(7) as first, pytest.raises(KeyboardInterrupt):
        trained(tmp_path)
    assert [step.number for step in first] == [*range(7)]
    with listed_steps() as rest:
        report = trained(tmp_path)
    assert [step.number for step in rest] == [*range(4, report.steps)], "from the checkpoint"


def test_a_stage_is_heard_too(task: Task, teacher: Artifact, tmp_path: Path) -> None:
    config = FinetuneConfig(
        teacher=str(teacher.path), epochs=1, batch_size=16, max_length=32, precision="fp32"
    )
    losses: list[float] = []
    with listen_to_steps(lambda step: losses.append(float(step.losses["hard"]))):
        tuned = finetune_by_name(task, config, tmp_path / "tuned")
    assert len(losses) == tuned.card.findings.training.steps == 6
