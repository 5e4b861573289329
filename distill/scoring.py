"""Scores of a model while it is trained, and once at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.findings import ScoreFindings
from bertender.measure.accuracy import evaluate
from bertender.metrics.records import Score
from bertender.models.predictor import Classifier, TorchPredictor
from bertender.tasks.task import Split, Task

__all__ = ["choice_score", "dev_score", "evaluated", "final_score"]


def choice_score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> dict[str, float]:
    """Return the model's score on the examples to choose by, by metric name."""
    return _score(model, tokenizer, task, task.choices)


def dev_score(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> dict[str, float]:
    """Return the model's score on the task's held-out examples, by metric name."""
    return _score(model, tokenizer, task, task.dev)


def final_score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    epochs: Sequence[Mapping[str, float]],
) -> ScoreFindings:
    """Return the held-out score of a trained model, and what its epochs were scored on.

    Args:
        model: it is scored here, once, unless the last of the `epochs` was on these texts.
        tokenizer: its tokenizer.
        task: training and held-out examples.
        epochs: the scores after each.
    """
    if task.chosen_on == "selection" or not epochs:
        scores: Mapping[str, float] = dev_score(model, tokenizer, task)
    else:
        scores = epochs[-1]
    return ScoreFindings(chosen_on=task.chosen_on, score=scores[task.metric])


def evaluated(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    split: Split,
) -> tuple[Score, Any]:
    """Return the model's score on some examples of the task, and its predictions."""
    encode = task.problem.encoder(tokenizer, None)
    classifier = Classifier(
        "training",
        task.labels,
        encode,
        TorchPredictor(model),
        model.num_parameters(),
        task.problem,
    )
    return evaluate(classifier, split, task.metric)


def _score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    split: Split,
) -> dict[str, float]:
    score, _ = evaluated(model, tokenizer, task, split)
    return {task.metric: score.value}
