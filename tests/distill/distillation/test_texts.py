"""Texts without labels, which a student learns from too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.metrics.metric import NO_LABEL
from bertender.tasks.loading import load_task
from bertender.tasks.task import Split, Task, TaskConfig
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill
from distill.distillation.texts import with_unlabelled
from tests.distill.distillation.settings import QUICK
from tests.tasks.writers import write_film_sentences, write_texts
from tests.toy_models import save_artifact, tiny_classifier


@pytest.mark.one_path
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


def added(task: Task, most: int) -> Split:
    """The training texts with so many of those that come with the task."""
    return with_unlabelled(task, DistillConfig(unlabelled_texts=most))[0].train


@pytest.fixture
def sst2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """The task of a small folder of data, with film sentences that nobody has labelled."""
    folder = write_texts(tmp_path / "data", copies=8)
    write_film_sentences(folder, [f"film {number} was long." for number in range(30)])
    monkeypatch.setenv("BERTENDER_DATA", str(folder))
    return load_task(TaskConfig(task="sst2"))


def test_a_student_on_sst2_learns_from_film_sentences(sst2: Task, tmp_path: Path) -> None:
    teacher = save_artifact(tiny_classifier("bert"), sst2, tmp_path / "teacher")
    config = DistillConfig(**{**QUICK, "epochs": 1}, unlabelled_texts=20)
    student = distill(teacher, sst2, config, tmp_path / "student")
    assert student.card.findings.training.unlabelled_texts == 20


def test_fewer_film_sentences_are_the_first_of_more(sst2: Task) -> None:
    few, more = (added(sst2, most) for most in (10, 20))
    assert more.examples[: len(few)] == few.examples
    assert len(more) - len(few) == 10 and set(more.label_ids[len(sst2.train) :]) == {NO_LABEL}


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.usefixtures("data_directory")
def test_film_sentences_of_the_real_file() -> None:
    task = load_task(TaskConfig(task="sst2"))
    more = added(task, 1000).examples[len(task.train) :]
    known = {text for split in (task.train, task.selection, task.dev) for text in split.examples}
    assert len(set(more)) == 1000 and not known & set(more)
    assert 5 < sum(len(text.split()) for (text,) in more) / 1000 < 40
    assert more[:10] == added(task, 10).examples[-10:]


@pytest.mark.parametrize("given", [{"unlabelled": Path("texts.txt")}, {"unlabelled_texts": 5}])
def test_a_method_of_labels_alone_takes_no_texts_without_them(
    given: dict[str, Any],
) -> None:
    DistillConfig.parse({"method": "hard", "unlabelled_texts": 0})
    with pytest.raises(ConfigError, match="learns from labels alone"):
        DistillConfig.parse({"method": "hard", **given})
