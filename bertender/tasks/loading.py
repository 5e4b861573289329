"""The way from a TaskConfig to a Task: by its name in TASKS, or from files of the user's own."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertender.core.errors import ConfigError, UnknownNameError
from bertender.problems import SINGLE_LABEL, ProblemType
from bertender.tasks.files import load_files
from bertender.tasks.registry import TASKS
from bertender.tasks.selection import part
from bertender.tasks.task import Split, Task, TaskConfig, default_of

__all__ = ["load_task", "sample"]

logger = logging.getLogger(__name__)

SAMPLE_SEED = 0


def load_task(config: TaskConfig, *, has_model: bool = False) -> Task:
    """Load the task that a config names, or the one that its files hold.

    Args:
        config: see TaskConfig.
        has_model: the task is for a finished model. A held-out file will do then, a share of which
            is set apart to choose on.

    Raises:
        UnknownNameError: no such task, and no files.
        ConfigError: a file without the other, or a share to choose on that is too few texts.
        DataError: a data file is wrong.
        HubUnreachableError: the data are not on this machine and no hub responds.
    """
    _check_sources(config)
    if config.train or config.dev:
        task = load_files(config, has_model=has_model)
    else:
        task = _by_name(config.task)
    splits = {"train": task.train, "dev": task.dev}
    data = {name: split.digest() for name, split in splits.items() if len(split)}
    # first, so that a text is on the same side whatever max_train is
    if len(task.train):
        parts = part(task.train, config.select, task.name, task.problem)
        task = replace(task, train=parts.train)
    else:
        parts = part(task.dev, config.select, task.name, task.problem, "held-out")
        task = replace(task, dev=parts.train)
        _say_set_apart(task, len(parts.selection))
    dev = sample(task.dev, config.max_dev, task.problem)
    selection = sample(parts.selection, config.max_select, task.problem)
    whole = (*task.dev.examples, *parts.selection.examples)
    sampled = {*dev.examples, *selection.examples}
    return replace(
        task,
        train=sample(task.train, config.max_train, task.problem),
        dev=dev,
        selection=selection,
        reserved=tuple(each for each in whole if each not in sampled),
        source=_source(config, task, parts.share),
        data=data,
    )


def sample(split: Split, count: int | None, problem: ProblemType[Any] = SINGLE_LABEL) -> Split:
    """Return `count` examples drawn with a fixed seed, or the split itself when it has no more.

    One example of every class comes first, so that no class is lost while there is room for all.
    """
    if count is None or count >= len(split):
        return split
    order = np.random.default_rng(SAMPLE_SEED).permutation(len(split))
    firsts = _first_of_each_label([problem.labels_of(split.label_ids[row]) for row in order])
    chosen = np.concatenate([order[firsts], np.delete(order, firsts)])[:count].tolist()
    return Split(
        tuple(split.examples[row] for row in chosen), tuple(split.label_ids[row] for row in chosen)
    )


def _first_of_each_label(labels: Iterable[Iterable[int]]) -> list[int]:
    """Return the places of the examples that have a label which none before them has."""
    seen: set[int] = set()
    places = []
    for place, own in enumerate(labels):
        if not seen.issuperset(own):
            places.append(place)
            seen.update(own)
    return places


def _say_set_apart(task: Task, count: int) -> None:
    """Say which held-out texts do not score, of a task without a training file."""
    if count:
        logger.warning(
            "task %s: of %d held-out texts, %d are set apart to choose and calibrate on, and %d "
            "score. With --train FILE, the former come from there",
            task.name,
            count + len(task.dev),
            count,
            len(task.dev),
        )


def _check_sources(config: TaskConfig) -> None:
    """Raise ConfigError for settings that would be ignored: those of files, or both kinds."""
    own = bool(config.train or config.dev)
    of_files = ("text_column", "pair_column", "label_column", "problem_type", "skip_bad_rows")
    changed = [name for name in of_files if getattr(config, name) != default_of(name)]
    if changed and not own:
        raise ConfigError(
            f"{', '.join(sorted(changed))}: for files of your own, and task {config.task!r} has "
            f"its own columns and no bad rows. Give --train and --dev as well, or leave them out."
        )
    if own and config.task in TASKS and config.is_explicit("task"):
        raise ConfigError(
            f"task={config.task!r} is a task by name, and train and dev are files of your own: "
            "give one or the other, or another name for your task."
        )


def _by_name(name: str) -> Task:
    if name not in TASKS:
        known = (*TASKS, "your own files with --train and --dev")
        raise UnknownNameError("task", name, known, setting="task")
    spec = TASKS[name]
    train, dev = spec.load()
    return Task(name, spec.labels, spec.metric, spec.text_columns, train, dev)


def _source(config: TaskConfig, task: Task, share: float) -> dict[str, object]:
    """Return the config in plain values that find the same data from any working directory."""
    absolute = {"task": task.name, "train": _absolute(config.train), "dev": _absolute(config.dev)}
    plain = config.model_copy(update={**absolute, "select": share}).model_dump(mode="json")
    # cards without it are of single labels, those of earlier versions included
    is_usual = task.problem is SINGLE_LABEL and config.problem_type is None
    recorded = {} if is_usual else {"problem_type": task.problem_type}
    settings = {name: plain[name] for name in plain if name not in ("problem_type", "label_map")}
    return {**settings, **task.source, **recorded}


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
