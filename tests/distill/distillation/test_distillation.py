"""A `Distillation`: made without training, run in phases, resumed where it was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError
from bertender.tasks.task import Task
from bertender.training.checkpoint import weights_digest
from bertender.training.steps import Objective
from distill.distillation.config import DistillConfig
from distill.distillation.on_task import OnTask
from distill.distillation.texts import TrainingTexts

CONFIG = DistillConfig(
    method="tinybert",
    layers=2,
    epochs=2,
    earlier_epochs=1,
    batch_size=16,
    learning_rate=2e-3,
    precision="fp32",
)


@pytest.fixture
def ready(trained_teacher: Artifact, task: Task) -> OnTask:
    return OnTask(trained_teacher, task, CONFIG)


def test_making_it_trains_and_computes_nothing(
    trained_teacher: Artifact, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainingTexts, "examples", lambda *given: pytest.fail("computed"))
    first, again = (OnTask(trained_teacher, task, CONFIG) for _ in range(2))
    digests = [weights_digest(each.student) for each in (first, again)]
    assert digests[0] == digests[1] and first.identity == again.identity


def test_what_cannot_be_distilled_is_refused_when_it_is_made(
    trained_teacher: Artifact, task: Task
) -> None:
    config = DistillConfig(method="minilm", layers=2, heads=2)
    with pytest.raises(ModelError, match="heads"):
        OnTask(trained_teacher, task, config)


def test_it_reports_each_phase_and_scores_the_last(ready: OnTask, tmp_path: Path) -> None:
    trained = ready.run(CONFIG, tmp_path, "distill")
    assert list(trained.reports) == [phase.name for phase in ready.phases]
    assert trained.last is trained.reports["prediction"]
    assert list(trained.reports)[:-1] == ["transformer"]
    assert [len(report.epochs) for report in trained.reports.values()] == [0, CONFIG.epochs]
    assert trained.timing.samples == (CONFIG.epochs + 1) * len(ready.task.train)
    assert 0 < trained.timing.teacher_s < trained.timing.wall_s


def test_it_is_measured_with_the_loss_of_the_last_phase(
    ready: OnTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Objective]] = []

    def evaluate(training_module: Any, objective: Objective) -> dict[str, float]:
        seen.append((training_module, objective))
        return {"epoch": float(len(seen))}

    monkeypatch.setattr(ready, "evaluate", evaluate)
    trained = ready.run(CONFIG, tmp_path, "distill")
    assert trained.last.epochs == [{"epoch": 1.0}, {"epoch": 2.0}]
    (training_module, objective), _ = seen
    examples = ready.examples()
    batch = examples.collate([examples[0], examples[1]])
    assert set(objective(training_module, batch, 0)) == set(trained.last.losses[0])


def test_a_run_that_keeps_its_end_is_not_trained_again(
    ready: OnTask, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    first = ready.run(CONFIG, tmp_path, "distill")
    torch.manual_seed(77)
    again = OnTask(trained_teacher, task, CONFIG)
    resumed = again.run(CONFIG, tmp_path, "distill")
    assert resumed.timing.samples == 0 < first.timing.samples
    assert weights_digest(resumed.student) == weights_digest(first.student)
    assert resumed.reports == first.reports
