"""The task that an artifact was made for, loaded again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.errors import ConfigError
from bertender.models.recorded_problem import problem_of
from bertender.problems import SINGLE_LABEL
from bertender.tasks.loading import load_task
from bertender.tasks.registry import TASKS
from bertender.tasks.task import Task, TaskConfig, default_of

__all__ = ["recorded_task"]

RENAMED = {"docs": "docs-library"}
"""Task -> the name that it has now, where another one has taken its name."""


def recorded_task(artifact: Artifact, changes: Mapping[str, Any]) -> Task:
    """Load the task that an artifact was made for, with some of its settings changed.

    What to choose on is set apart as it was then: of older artifacts nothing, since they have
    learned from every training text.

    Raises:
        ConfigError: the artifact records no task, and `changes` name none; or more is to be set
            apart than was then.
    """
    names_task = "task" in changes or "train" in changes
    source = {} if names_task else _source(artifact)
    settings = {**source, **_problem(artifact, changes), **changes}
    if not (names_task or source):
        raise ConfigError(
            f"{artifact.path} does not record its task. Name one with --task, or give "
            "your files with --train and --dev."
        )
    config = TaskConfig.parse(settings)
    if _is_own(artifact, config):
        config = TaskConfig.parse({**_set_apart(artifact), **settings})
        _check_not_learned(artifact, config)
    return load_task(config)


def _problem(artifact: Artifact, changes: Mapping[str, Any]) -> dict[str, str]:
    """Return the artifact's problem type, for files whose suffix does not show it."""
    own = problem_of(artifact)
    return {"problem_type": own.name} if "train" in changes and own is not SINGLE_LABEL else {}


def _source(artifact: Artifact) -> dict[str, Any]:
    """Return how the artifact's task was loaded, by the name that the task has now."""
    record = artifact.card.task
    source = {name: value for name, value in record.source.items() if name not in _unread(record)}
    renamed = RENAMED.get(str(record.source.get("task")))
    if renamed and record.labels == TASKS[renamed].labels:
        return {**source, "task": renamed}
    return source


def _unread(record: TaskRecord) -> tuple[str, ...]:
    """Return settings of columns that a card has at their default, where others were read.

    Earlier versions recorded the default also where the problem type has columns of its own.
    """
    recorded = record.source.get("text_column")
    others = recorded == default_of("text_column") and recorded not in record.text_columns
    return ("text_column", "label_column") if others else ()


def _is_own(artifact: Artifact, config: TaskConfig) -> bool:
    """Return whether a task is of the data that the artifact was made from."""
    source = _source(artifact)
    if config.train is not None:  # whatever the task is called
        return str(config.train.absolute()) == source.get("train")
    return config.task == source.get("task")


def _set_apart(artifact: Artifact) -> dict[str, float]:
    """Return the share of the training texts that an artifact has not learned from, if known."""
    source = artifact.card.task.source
    return {"select": source.get("select", 0.0)} if source else {}


def _check_not_learned(artifact: Artifact, config: TaskConfig) -> None:
    """Raise ConfigError where texts would be chosen on that the artifact has learned from."""
    share = _set_apart(artifact).get("select", 0.0)
    if config.select is not None and config.select > share:
        raise ConfigError(
            f"select={config.select:g}: {artifact.path} was made with select={share:g}, and has "
            f"learned from the other texts. Give {share:g} at most, or make it again."
        )
