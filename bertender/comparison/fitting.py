"""Scores of trained models, with what is fitted to their outputs after a training: thresholds of
sets, and parameters of decoding."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.accuracy import (
    answers,
    decoded,
    evaluate,
    evaluate_all,
    predict_outputs,
    score_findings,
    warn_early,
)
from bertender.core.findings import ScoreFindings
from bertender.metrics import score
from bertender.metrics.metric import OF_HEAD, Score, is_labelled
from bertender.models.classifier import Classifier, TorchPredictor
from bertender.problems.problem import Outputs
from bertender.problems.several_heads import SeveralHeads
from bertender.tasks.loading import sample
from bertender.tasks.task import Split, Task
from bertender.training.config import JudgedConfig
from bertender.training.heads.numbers import output_layer

logger = logging.getLogger(__name__)

TEXTS_TO_FIT = 2000
"""Training texts on which decoding parameters are fitted without validation texts, and thresholds
after an epoch: all of them would take a third of the epoch."""
FEWEST_EXAMPLES = 5
"""Fewest examples of a label for its own threshold; fewer would give a random one."""


def as_classifier(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    fitted: Mapping[str, float] | None = None,
) -> Classifier:
    """Return a classifier of a model in training.

    Args:
        model: the model.
        tokenizer: its tokenizer.
        task: its task.
        fitted: fitted decoding parameters of the model; None before fitting.
    """
    fitted = unfitted(task) if fitted is None else fitted
    problem = task.problem.reading(tokenizer).with_fitted(fitted)
    encode, predictor = problem.encoder(tokenizer), TorchPredictor(model)
    return Classifier("training", task.labels, encode, predictor, model.num_parameters(), problem)


def evaluated(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    split: Split,
    fitted: Mapping[str, float] | None = None,
) -> tuple[Score, Any]:
    """Return the model's score on some examples of the task, and its predictions."""
    return evaluate(as_classifier(model, tokenizer, task, fitted), split, task.metric)


def validated(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> tuple[Score, Any]:
    """Return the score of a model in training on the validation examples, and its predictions.

    They are decoded as those of the final model, with thresholds and parameters that are fitted in
    the same way (`fit_thresholds`, `fit_decoding`). The model is not changed.
    """
    split, problem = task.choices, task.problem
    classifier = as_classifier(model, tokenizer, task)
    outputs, predictions = answers(classifier, split)
    fits = problem.has_thresholds or unfitted(task)
    if fits and len(fitting := _texts_to_fit(task, TEXTS_TO_FIT)):
        own = outputs if fitting == split else predict_outputs(classifier, fitting.examples)
        if problem.has_thresholds:
            found = np.array([*best_thresholds(task, own, fitting).values()])
            outputs = [
                each._replace(logits=(each.logits - found).astype(np.float32)) for each in outputs
            ]
        else:
            fitted = problem.fit(own, fitting.examples, fitting.label_ids)
            problem = classifier.problem.with_fitted(fitted)
        predictions = decoded(problem, outputs, split.examples)
    labels = task.labels
    measured = score(
        task.metric, split.label_ids, predictions, label_count=len(labels), labels=labels
    )
    return measured, predictions


def epoch_score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: JudgedConfig,
) -> dict[str, float]:
    """Return the score after an epoch on the validation examples, by metric name.

    Warnings are logged for a model that predicts one label, unless it has thresholds, and for a
    metric that is undefined.

    Args:
        model: the model, which is not changed.
        tokenizer: its tokenizer.
        task: source of the validation examples.
        config: settings of the training.
    """
    measured, predictions = validated(model, tokenizer, task)
    if not task.problem.has_thresholds:
        warn_early(task, task.choices, predictions, config)
    if measured.undefined is not None:
        logger.warning(
            "task %s: so far there is no %s of the validation texts, which counts as 0: %s",
            *(task.name, task.metric, measured.undefined),
        )
    return {task.metric: measured.value}


def final_score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    earlier: Mapping[str, float] | None = None,
    **more: Any,
) -> ScoreFindings:
    """Return the held-out score of a trained model, and whether it predicts one label there.

    Thresholds are fitted first, on texts that are not used for scores.

    Args:
        model: the trained model.
        tokenizer: its tokenizer.
        task: training and held-out examples.
        earlier: thresholds that are already part of the model; the new ones are added.
        more: other fields of ScoreFindings.
    """
    if task.problem.has_thresholds:
        known = earlier or {}
        found = fit_thresholds(model, tokenizer, task)
        more["thresholds"] = {label: known.get(label, 0.0) + own for label, own in found.items()}
    fitted = fit_decoding(model, tokenizer, task)
    classifier = as_classifier(model, tokenizer, task, fitted)
    scores, predictions = evaluate_all(classifier, task.dev, task.metric)
    return score_findings(task, scores, predictions, fitted=fitted or None, **more)


def fit_decoding(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> Mapping[str, float]:
    """Fit the decoding parameters of the model's outputs for the card; most kinds have none.

    Args:
        model: a classifier.
        tokenizer: its tokenizer.
        task: fitted on its validation texts, or, without separate ones, on its training texts.
    """
    split = _texts_to_fit(task, TEXTS_TO_FIT)
    if not (unfitted(task) and len(split)):
        return unfitted(task)
    outputs = predict_outputs(as_classifier(model, tokenizer, task), split.examples)
    return task.problem.fit(outputs, split.examples, split.label_ids)


def _texts_to_fit(task: Task, most: int | None = None) -> Split:
    """Return the labelled validation texts, or, without separate ones, `most` training texts."""
    if len(task.selection):
        return task.selection.labelled
    return sample(task.train.labelled, most, task.problem)


def unfitted(task: Task) -> Mapping[str, float]:
    """Return the decoding parameters before fitting, by the answers that the task has."""
    return task.problem.unfitted((task.train.labelled or task.choices).label_ids)


def fit_thresholds(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, task: Task
) -> dict[str, float]:
    """Shift each label's logit so that a threshold of 0 gives the label's best F1.

    The thresholds are subtracted from the output layer's biases, so that any program that opens the
    model decides alike. Labels with fewer than FEWEST_EXAMPLES keep their biases.

    Args:
        model: a multi-label classifier.
        tokenizer: its tokenizer.
        task: fitted on its validation texts, or, without separate ones, on its training texts.

    Returns:
        The thresholds, in logits, by label; empty where the output layer has no biases.
    """
    split = _texts_to_fit(task)
    layer = output_layer(model, len(task.labels))
    if not len(split) or layer is None or layer.bias is None:
        return {}
    outputs = predict_outputs(as_classifier(model, tokenizer, task), split.examples)
    found = best_thresholds(task, outputs, split)
    with torch.no_grad():
        moved = torch.tensor([*found.values()], dtype=layer.bias.dtype, device=layer.bias.device)
        layer.bias.sub_(moved)
    sets = [name for name, kind in task.problem.heads.items() if kind.has_thresholds]
    return {
        label: threshold
        for label, threshold in found.items()
        if not task.problem.heads or label.partition(OF_HEAD)[0] in sets
    }


def best_thresholds(task: Task, outputs: Sequence[Outputs], split: Split) -> dict[str, float]:
    """Return the best threshold of each label, given the outputs on a split; labels of heads
    without thresholds have 0."""
    problem = task.problem
    if isinstance(problem, SeveralHeads):
        found = dict.fromkeys(task.labels, 0.0)
        for place, (name, kind) in enumerate(problem.heads.items()):
            rows = [row for row, own in enumerate(split.label_ids) if is_labelled(own[place])]
            if not (kind.has_thresholds and rows):
                continue
            own = Split(
                tuple(split.examples[row] for row in rows),
                tuple(split.label_ids[row][place] for row in rows),
            )
            of_head = [problem.of_head(name, outputs[row]) for row in rows]
            for label, threshold in best_thresholds(task.of_head(name), of_head, own).items():
                found[f"{name}{OF_HEAD}{label}"] = threshold
        return found
    values = np.stack([each.logits[0] for each in outputs])  # (texts, labels)
    truth = np.zeros(values.shape, dtype=bool)
    for row, numbers in enumerate(split.label_ids):
        truth[row, list(numbers)] = True
    columns = zip(task.labels, values.T, truth.T, strict=True)
    return {label: best_threshold(own, true) for label, own, true in columns}


def best_threshold(logits: npt.NDArray[np.float32], truth: npt.NDArray[np.bool_]) -> float:
    """Return the threshold of a label's logits (texts,) with the best F1; 0 for a rare label."""
    if truth.sum() < FEWEST_EXAMPLES or truth.all():
        return 0.0
    order = np.argsort(-logits, kind="stable")
    hits, chosen = np.cumsum(truth[order]), np.arange(1, len(order) + 1)
    ordered = logits[order].astype(np.float64)
    f1 = 2 * hits[:-1] / (chosen[:-1] + truth.sum())
    f1[ordered[:-1] == ordered[1:]] = 0.0  # no threshold lies between equal logits
    best = int(f1.argmax())
    return float((ordered[best] + ordered[best + 1]) / 2)
