"""Scores of a model while it is trained, and once at the end."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.findings import ScoreFindings
from bertender.measure.accuracy import evaluate
from bertender.measure.constant import check_teacher_varied, found_constant, warn_early
from bertender.metrics.records import Score
from bertender.models.predictor import Classifier, TorchPredictor
from bertender.tasks.task import Split, Task
from bertender.text.batch import load_tokenizer
from bertender.training.config import JudgedConfig
from distill.teachers.teacher import Teacher

__all__ = [
    "check_teacher",
    "choice_score",
    "dev_score",
    "epoch_score",
    "evaluated",
    "final_score",
]


def choice_score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> dict[str, float]:
    """Return the model's score on the examples to choose by, by metric name."""
    score, _ = evaluated(model, tokenizer, task, task.choices)
    return {task.metric: score.value}


def epoch_score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: JudgedConfig,
) -> dict[str, float]:
    """Return `choice_score` after an epoch; log a warning of a model that predicts one label."""
    score, predictions = evaluated(model, tokenizer, task, task.choices)
    warn_early(task, task.choices, predictions, config)
    return {task.metric: score.value}


def dev_score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> dict[str, float]:
    """Return the model's score on the task's held-out examples, by metric name."""
    score, _ = evaluated(model, tokenizer, task, task.dev)
    return {task.metric: score.value}


def final_score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    **more: Any,
) -> ScoreFindings:
    """Return the held-out score of a trained model, and whether it predicts one label there.

    Args:
        model: it is scored here, once.
        tokenizer: its tokenizer.
        task: training and held-out examples.
        more: other fields of ScoreFindings.
    """
    score, predictions = evaluated(model, tokenizer, task, task.dev)
    return ScoreFindings(
        chosen_on=task.chosen_on,
        score=score.value,
        constant=found_constant(task, task.dev, predictions),
        **more,
    )


def evaluated(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    split: Split,
) -> tuple[Score, Any]:
    """Return the model's score on some examples of the task, and its predictions."""
    return evaluate(_classifier(model, tokenizer, task), split, task.metric)


def check_teacher(teacher: Teacher, task: Task, config: JudgedConfig) -> None:
    """Raise ConstantError for a teacher that predicts one label, unless the config allows it.

    Args:
        teacher: what a student is to learn from.
        task: of its labels; some texts to choose by are read.
        config: of the stage.
    """
    if not config.allow_constant:
        tokenizer = load_tokenizer(teacher.artifact.path)
        classifier = _classifier(teacher.model, tokenizer, task)
        otherwise = " allow_constant learns from it all the same."
        check_teacher_varied(classifier, teacher.artifact.path, task, otherwise)


def _classifier(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> Classifier:
    encode = task.problem.encoder(tokenizer, None)
    predictor, parameters = TorchPredictor(model), model.num_parameters()
    return Classifier("training", task.labels, encode, predictor, parameters, task.problem)
