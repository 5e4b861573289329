"""The labels of data as the labels of a model: which is which, by name or by position.

A model that comes in finished has names of its own for what the user's data call otherwise.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from bertender.core.errors import ConfigError, nearest_hint
from bertender.problems.problem import are_unnamed

if TYPE_CHECKING:  # it reads `check_label_map`
    from bertender.tasks.task import Split, Task

__all__ = ["check_label_map", "with_model_labels"]

logger = logging.getLogger(__name__)

SHOWN_LABELS = 20


def with_model_labels(task: Task, labels: Sequence[str], label_map: str | None, model: str) -> Task:
    """Return a task whose targets are numbers of a model's labels.

    Labels are matched as `label_map` has them; else by equal names, then by names that differ in
    case alone, then by position where one side has no names (`LABEL_0`, or 0, 1, 2 in the data).
    What is not an equal name is logged.

    Args:
        task: with the labels of its data.
        labels: of the model, in the order of its logits.
        label_map: `DATA=MODEL` by commas, or a JSON object.
        model: what to call it in messages.

    Raises:
        ConfigError: a label of the data has no place among those of the model.
    """
    if label_map is None and task.labels == tuple(labels):
        return task
    own = task.labels
    if label_map is None and (occurring := _occurring(task)) <= set(labels):
        own = tuple(label for label in own if label in occurring)
    names = _matched(own, tuple(labels), _parsed(label_map), model)
    numbers = {own: labels.index(theirs) for own, theirs in names.items()}
    problem = task.problem

    def renumbered(split: Split) -> Split:
        targets = (problem.by_names(each, task.labels) for each in split.label_ids)
        return replace(split, label_ids=tuple(problem.number(each, numbers) for each in targets))

    other = {own: theirs for own, theirs in names.items() if own != theirs}
    return replace(
        task,
        labels=tuple(labels),
        train=renumbered(task.train),
        dev=renumbered(task.dev),
        selection=renumbered(task.selection),
        source={**task.source, **({"label_map": json.dumps(names)} if other else {})},
    )


def _occurring(task: Task) -> set[str]:
    """Return the labels that some example has: tags are in pairs, and O is among plain ones."""
    splits = (task.train, task.dev, task.selection)
    targets = (target for split in splits for target in split.label_ids)
    return {task.labels[number] for target in targets for number in task.problem.labels_of(target)}


def check_label_map(value: str | None) -> str | None:
    """Return a label map as it is, or raise ValueError where it cannot be read."""
    _parsed(value)
    return value


def _parsed(label_map: str | None) -> Mapping[str, str]:
    if not label_map:
        return {}
    if label_map.lstrip().startswith("{"):
        try:
            names = json.loads(label_map)
        except json.JSONDecodeError as error:
            raise ValueError(f"it is not JSON: {error}") from None
        if all(isinstance(each, str) for each in names.values()):
            return dict(names)
        raise ValueError("a label map in JSON has names of labels alone")
    pairs = [part.partition("=") for part in label_map.split(",")]
    if not all(own.strip() and equals and theirs.strip() for own, equals, theirs in pairs):
        raise ValueError(
            "give DATA=MODEL for each label, by commas, as negative=LABEL_0,positive=LABEL_1; or a "
            "JSON object where labels have commas or equals signs"
        )
    return {own.strip(): theirs.strip() for own, _, theirs in pairs}


def _matched(
    own: tuple[str, ...], labels: tuple[str, ...], label_map: Mapping[str, str], model: str
) -> dict[str, str]:
    """Return the model's label of each label of the data."""
    if label_map:
        return _mapped(own, labels, label_map, model)
    if set(own) <= set(labels):
        return {label: label for label in own}
    by_case = {label.casefold().strip(): label for label in labels}
    if len(by_case) == len(labels) and {label.casefold().strip() for label in own} <= set(by_case):
        found = {label: by_case[label.casefold().strip()] for label in own}
        _say(found, "by names without regard to case", model)
        return found
    # 1, 2, 3 may be numbers from 1 on, or those of a file that lacks 0: only 0 tells them apart
    if "0" in own and all(label.isdecimal() and int(label) < len(labels) for label in own):
        found = {label: labels[int(label)] for label in own}
        _say(found, "by number", model)
        return found
    if len(own) == len(labels) and are_unnamed(labels):
        found = dict(zip(own, labels, strict=True))
        _say(found, "by position, for the model's labels have no names", model)
        return found
    raise ConfigError(
        f"the data have the labels {_listed(own)}, and {model} has {_listed(labels)}. Say which is "
        f"which: --label-map {own[0]}={labels[0]},... (DATA=MODEL for each label of the data)."
    )


def _mapped(
    own: tuple[str, ...], labels: tuple[str, ...], label_map: Mapping[str, str], model: str
) -> dict[str, str]:
    """Return the model's label of each label of the data, as a label map has it.

    A label that it leaves out has the same name in both.
    """
    uncovered = [label for label in own if label not in label_map]
    for label in label_map:
        if (
            label not in own and uncovered
        ):  # a map for more labels than a file has is none the worse
            raise ConfigError(
                f"label_map: {label!r} is no label of the data.{nearest_hint(label, own)} The data "
                f"have {_listed(own)}."
            )
    found = {label: label_map.get(label, label) for label in own}
    for label, theirs in found.items():
        if theirs not in labels and label not in label_map:
            raise ConfigError(
                f"label_map: it has nothing for {label!r} of the data, and the model has no label "
                f"of that name. It has {_listed(labels)}."
            )
        if theirs not in labels:
            raise ConfigError(
                f"label_map: {label}={theirs}: {theirs!r} is no label of {model}."
                f"{nearest_hint(theirs, labels)} It has {_listed(labels)}."
            )
    return found


def _say(names: Mapping[str, str], how: str, model: str) -> None:
    logger.warning(
        "labels of the data are those of %s %s: %s. Another order: --label-map",
        model,
        how,
        ", ".join(f"{own}={theirs}" for own, theirs in names.items()),
    )


def _listed(labels: Sequence[str]) -> str:
    more = len(labels) - SHOWN_LABELS
    shown = ", ".join(map(repr, labels[:SHOWN_LABELS]))
    return f"{shown} and {more} more" if more > 0 else shown
