"""A distillation from a file: its control's labels, and how far teacher and student agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedModel

from bertender.comparison.accuracy import answers
from bertender.comparison.calibration import reliability_of
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.findings import TeacherFileFindings
from bertender.metrics import METRICS, score
from bertender.metrics.metric import is_labelled
from bertender.problems.problem import Outputs
from bertender.tasks.task import Task
from bertender.tasks.teacher_files import TeacherFile, held_out_outputs
from distill.distillation.on_task import OnTask
from distill.trained import as_classifier


def check_control(file: TeacherFile) -> None:
    """Raise ConfigError where a file has hard labels alone, so that the control is the student."""
    if file.weights is None and (file.form == "labels" or not file.kind.has_probabilities):
        raise ConfigError(
            f"control=True: {file.path} has labels without probabilities or confidence, so that "
            "the student is its own control. Leave it out."
        )


def with_hard_labels(task: Task, file: TeacherFile) -> Task:
    """Return a task whose training texts have labels all: their gold ones, or those that the
    teacher's file decides for."""
    train = task.train
    decided = file.kind.decided(file.of_texts(train.examples))
    targets = (
        own if is_labelled(own) else made
        for own, made in zip(train.label_ids, decided, strict=True)
    )
    return replace(task, train=replace(train, label_ids=tuple(targets)))


def file_findings(
    distillation: OnTask, student: PreTrainedModel, teacher: Artifact | TeacherFile
) -> TeacherFileFindings | None:
    """Return what a student's card keeps of a teacher that is a file; None for a model.

    Agreement is measured on the held-out texts that the file, or the held-out file itself, has
    outputs on.

    Args:
        distillation: with the held-out texts.
        student: trained.
        teacher: of the distillation.
    """
    if not isinstance(teacher, TeacherFile):
        return None
    task, labels = distillation.task, distillation.task.labels
    found, predictions = answers(as_classifier(student, distillation.tokenizer, task), task.dev)
    own = reliability_of(task.problem, found, task.dev, labels)
    theirs = held_out_outputs(teacher, task, distillation.config.columns)
    return TeacherFileFindings(
        path=str(teacher.path),
        sha256=teacher.digest,
        form=teacher.form,
        rows=len(teacher.examples),
        gold=len(teacher.gold_by_text),
        calibration_error=own and own.ece,
        **(_beside(teacher, task, predictions, theirs) if theirs else {}),
    )


def _beside(teacher: TeacherFile, task: Task, predictions: Any, theirs: Any) -> dict[str, Any]:
    """Return the findings on the held-out texts that a teacher has outputs on.

    Args:
        teacher: the file.
        task: with these texts.
        predictions: of the student on all of them.
        theirs: outputs of the teacher by text.
    """
    rows = [row for row, example in enumerate(task.dev.examples) if example in theirs]
    both = task.dev.where([example in theirs for example in task.dev.examples])
    outputs = np.stack([theirs[example] for example in both.examples])
    decided = teacher.kind.decided(outputs)
    logits = teacher.kind.logits(outputs)
    count: dict[str, Any] = {"label_count": len(task.labels), "labels": task.labels}
    reads_logits = METRICS[task.metric].reads_logits
    answered: Any = logits if reads_logits else task.problem.gather(decided)
    own = [predictions[row] for row in rows]
    place = np.zeros(1, dtype=np.int64)
    as_outputs = [Outputs(row[None], place) for row in logits]
    reliability = reliability_of(task.problem, as_outputs, both, task.labels)
    return {
        "held_out": len(both),
        "score": score(task.metric, both.label_ids, answered, **count).value,
        "agreement": score(
            teacher.kind.agreement, decided, task.problem.gather(own), **count
        ).value,
        "teacher_calibration_error": reliability and reliability.ece,
    }
