"""The task that an artifact was made for, loaded again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact
from bertender.core.card import TaskRecord
from bertender.core.errors import ConfigError
from bertender.models.classifier import problem_of
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig, default_of, with_model_labels

logger = logging.getLogger(__name__)

CONTENT = ("text_column", "pair_column", "label_column", "problem_type", "skip_bad_rows", "dev")
"""Settings of a task that change which examples its files have."""


def task_of_models(artifacts: Sequence[Artifact], changes: Mapping[str, Any]) -> Task:
    """Load the task that models are judged on: as `recorded_task` of the first that records one."""
    recording = (each for each in artifacts if each.card.task.source)
    return recorded_task(next(recording, artifacts[0]), changes)


def recorded_task(artifact: Artifact, changes: Mapping[str, Any]) -> Task:
    """Load the task that an artifact was made for, with some of its settings changed.

    What to choose on is set apart as it was then: of older artifacts nothing, since they have
    learned from every training text. Data that have changed since are named in a warning.

    Raises:
        ConfigError: the artifact records no task, and `changes` name none; or more is to be set
            apart than was then; or the labels of the data are not those of a model that records
            none.
    """
    names_task = "task" in changes or "train" in changes
    source = {} if names_task else _source(artifact)
    if not (names_task or source or "dev" in changes):
        raise ConfigError(
            f"{artifact.place} does not record its task. Name one with --task, or give your files: "
            "--dev FILE with texts and labels to judge by (and --text-column, --label-column), "
            "and --train FILE where something is to be learned."
        )
    settings = {**source, **_problem(artifact, changes), **changes}
    config = TaskConfig.parse(settings)
    is_own = _is_own(artifact, config)
    if is_own:
        config = TaskConfig.parse({**_set_apart(artifact), **settings})
        _check_not_learned(artifact, config)
    _check_not_chosen_on(artifact, config)
    task = load_task(config, has_model=bool(artifact.card.task.labels))
    if is_own and not set(changes) & set(CONTENT):
        _warn_of_changed_data(artifact, task)
    return _with_labels_of(artifact, task, config.label_map)


def _with_labels_of(artifact: Artifact, task: Task, label_map: str | None) -> Task:
    """Return the task with the labels of the model in their order.

    Texts of another task, which an artifact may be checked on, stay as they are where the artifact
    has a task of its own: each command says whether it takes them.
    """
    record = artifact.card.task
    if not record.labels or task.problem_type != record.problem_type:
        return task
    theirs_alone = set(task.labels) - set(record.labels)
    if record.source and theirs_alone and label_map is None:
        return task
    return with_model_labels(task, record.labels, label_map, artifact.name)


def _warn_of_changed_data(artifact: Artifact, task: Task) -> None:
    """Say which of an artifact's files have other examples now than when it was made."""
    before = artifact.card.task.data
    changed = [name for name, digest in task.data.items() if before.get(name, digest) != digest]
    for name in changed:
        logger.warning(
            "%s: the %s examples%s have changed since the artifact was made. What is made now "
            "is of other data than it is",
            artifact.path,
            {"train": "training", "dev": "held-out"}[name],
            f" ({task.source[name]})" if task.source.get(name) else "",
        )


def _problem(artifact: Artifact, changes: Mapping[str, Any]) -> dict[str, str]:
    """Return the artifact's problem type, for files whose suffix does not show it."""
    own = problem_of(artifact)
    names_files = "train" in changes or "dev" in changes
    return {"problem_type": own.name} if names_files and own is not SINGLE_LABEL else {}


def _source(artifact: Artifact) -> dict[str, Any]:
    """Return how the artifact's task was loaded."""
    record = artifact.card.task
    return {name: value for name, value in record.source.items() if name not in _unread(record)}


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


def _check_not_chosen_on(artifact: Artifact, config: TaskConfig) -> None:
    """Raise ConfigError where texts would score on which the artifact was chosen and calibrated.

    Of a held-out file alone, a share was set apart for that; the others score in every command.
    """
    source = artifact.card.task.source
    before = source.get("select")
    if source.get("train") or not before or source.get("dev") != _absolute(config.dev):
        return
    if config.train is not None or config.select not in (None, before):
        setting = f"select={config.select:g}" if config.train is None else f"train={config.train}"
        raise ConfigError(
            f"{setting}: {artifact.path} was chosen and calibrated on a share of {before:g} of "
            f"{source['dev']}, which would score it. Leave it out, or make the artifact again so."
        )


def _absolute(path: Path | None) -> str | None:
    return None if path is None else str(path.absolute())


def _check_not_learned(artifact: Artifact, config: TaskConfig) -> None:
    """Raise ConfigError where texts would be chosen on that the artifact has learned from."""
    share = _set_apart(artifact).get("select", 0.0)
    if config.select is not None and config.select > share:
        raise ConfigError(
            f"select={config.select:g}: {artifact.path} was made with select={share:g}, and has "
            f"learned from the other texts. Give {share:g} at most, or make it again."
        )
