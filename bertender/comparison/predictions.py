"""Predictions of a row, compared with the truth and with those of the first row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertender.comparison.accuracy import Answers
from bertender.comparison.records import Confused, Disagreement
from bertender.metrics.metric import is_labelled
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.task import Task

SHOWN_CHARACTERS = 500


def confusion(task: Task, predictions: Sequence[Any]) -> tuple[Confused, ...] | None:
    """Return counts of predicted labels for each true label, the most frequent first; None for
    kinds of problems without a single label per text."""
    if task.problem_type != SINGLE_LABEL.name:
        return None
    pairs = zip(task.dev.label_ids, predictions, strict=True)
    counts = Counter((int(truth), int(own)) for truth, own in pairs if is_labelled(truth))
    return tuple(
        Confused(truth=truth, predicted=own, texts=texts)
        for (truth, own), texts in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )


def disagreements(
    task: Task, first: Answers, own: Answers, count: int
) -> tuple[Disagreement, ...] | None:
    """Return the held-out texts on which two models differ most, the largest distance first.

    Texts with the same prediction are left out, except for numbers.

    Args:
        task: task of the texts.
        first: answers of the first row.
        own: answers of another row.
        count: largest number of texts.
    """
    problem = task.problem
    if problem.gives_vectors:
        return None
    apart = []
    for row, (ours, theirs) in enumerate(zip(own.outputs, first.outputs, strict=True)):
        if ours.logits.shape != theirs.logits.shape:  # spans of other windows
            continue
        distance = problem.divergence(theirs.logits, ours.logits)
        if np.isfinite(distance) and distance > 0:
            apart.append((distance, row))
    found: list[Disagreement] = []
    for distance, row in sorted(apart, key=lambda each: (-each[0], each[1])):
        if len(found) == count:
            break
        example, target = task.dev.examples[row], task.dev.label_ids[row]
        before, after = (
            shown(problem.by_names(answers.predictions[row], task.labels))
            for answers in (first, own)
        )
        if before == after and problem.names_labels:
            continue
        truth = shown(problem.by_names(target, task.labels)) if is_labelled(target) else ""
        text = problem.separator.join(example)
        found.append(
            Disagreement(
                text=text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "...",
                truth=truth,
                first=before,
                own=after,
                distance=distance,
            )
        )
    return tuple(found)


def shown(answer: Any) -> str:
    """Return an answer as label names for a cell; a dash for None."""
    if answer is None:
        return "-"
    if isinstance(answer, str):
        return answer
    if isinstance(answer, float | np.floating):
        return f"{answer:.4g}"
    if isinstance(answer, Mapping):
        return "; ".join(f"{name}: {shown(each)}" for name, each in answer.items())
    if isinstance(answer, Sequence | np.ndarray):
        return ", ".join(map(shown, answer)) or "none"
    return str(answer)
