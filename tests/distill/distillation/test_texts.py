"""Texts without labels, which a student learns from too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.tasks.task import Task
from distill.distillation.distiller import DistillConfig, distill
from tests.distill.distillation.settings import QUICK


@pytest.mark.parametrize("name", ["texts.txt", "texts.csv"])
def test_texts_without_labels_are_learned_from(
    name: str, trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    few = replace(task, train=task.train.first(4))
    texts = "\n".join(text for (text,) in task.train.examples)
    (tmp_path / name).write_text(texts if name.endswith("txt") else f"text\n{texts}\n")
    settings = {**QUICK, "unlabelled": tmp_path / name}
    student = distill(trained_teacher, few, DistillConfig(**settings), tmp_path / "student")
    alone = distill(trained_teacher, few, DistillConfig(**QUICK), tmp_path / "alone")
    assert student.card.findings.training.steps > alone.card.findings.training.steps
    assert student.card.findings.training.epochs[-1]["accuracy"] > 0.9


@pytest.mark.parametrize("given", [{"unlabelled": Path("texts.txt")}, {"unlabelled_texts": 5}])
def test_a_method_of_labels_alone_takes_no_texts_without_them(
    given: dict[str, Any], trained_teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    DistillConfig(method="hard", unlabelled_texts=0).check_rules()
    config = DistillConfig(method="hard", **given)
    with pytest.raises(ConfigError, match="learns from labels alone"):
        distill(trained_teacher, task, config, tmp_path / "student")
