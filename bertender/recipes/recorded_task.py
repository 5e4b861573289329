"""The recorded task of an artifact, loaded again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
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
    """Load the task for evaluating models: `recorded_task` of the first model that records one."""
    recording = (each for each in artifacts if each.card.task.source)
    return recorded_task(next(recording, artifacts[0]), changes)


def recorded_task(artifact: Artifact, changes: Mapping[str, Any]) -> Task:
    """Load the task that an artifact records, with some settings changed.

    Validation texts are the recorded ones; older artifacts have none, since they learned from all
    training texts. A warning names data that have changed since.

    Raises:
        ConfigError: the artifact records no task and `changes` name none; or they enlarge the share
            of validation texts; or the data have labels that are unknown to a model that records
            none, or other numbers of texts.
    """
    record = artifact.card.task
    names_task, names_files = {"task", "train"} & changes.keys(), {"train", "dev"} & changes.keys()
    source = _recorded_source(record, bool(names_files))
    if not (names_task or source or "dev" in changes):
        raise ConfigError(
            f"{artifact.place} does not record its task. Name one with --task, or give your files: "
            "--dev FILE with texts and labels to judge by (and --text-column, --label-column), "
            "and --train FILE where something is to be learned."
        )
    kind = problem_of(artifact)  # a file's suffix need not show it
    of_kind = {"problem_type": kind.name} if names_files and kind is not SINGLE_LABEL else {}
    settings = {**({} if names_task else source), **of_kind, **changes}
    config = TaskConfig.parse(settings)
    is_own = config.task == source.get("task")
    if config.train is not None:  # whatever the task's name
        is_own = str(config.train.absolute()) == source.get("train")
    if is_own:
        share = source.get("select", 0.0)
        config = TaskConfig.parse({**({"select": share} if source else {}), **settings})
        if config.select is not None and config.select > share:
            raise ConfigError(
                f"select={config.select:g}: {artifact.place} was made with select={share:g}, and "
                f"has learned from the other texts. Give {share:g} at most, or make it again."
            )
    held_out_then = is_own and source.get("dev") is None
    if config.train is not None and config.dev is None and not held_out_then:
        raise ConfigError(
            f"train={config.train} is set without dev, and {artifact.place} may have learned from "
            "the texts that would be held out of it. Give --dev FILE besides."
        )
    _check_not_chosen_on(artifact, config)
    task = load_task(config, has_model=bool(record.labels))
    task.check_columns(artifact)
    if is_own and not changes.keys() & {*CONTENT}:
        _warn_of_changed_data(artifact, task, config)
    # texts of another task, for checks of an artifact, keep their labels if the artifact has its
    # own task: each command decides whether it takes them
    if not record.labels or task.problem_type != record.problem_type:
        return task
    if record.source and {*task.labels} - {*record.labels} and config.label_map is None:
        return task
    return with_model_labels(task, record.labels, config.label_map, artifact.name)


def _recorded_source(record: TaskRecord, names_files: bool) -> dict[str, Any]:
    """Return the recorded settings of a task; those of a task by name are not of the user's
    files."""
    source = dict(record.source)
    if names_files and not (source.get("train") or source.get("dev")):
        return {}
    if source.get("text_column") == default_of("text_column") not in record.text_columns:
        # recorded at its default, though the problem type has its own columns
        return {name: source[name] for name in source.keys() - {"text_column", "label_column"}}
    return source


def _warn_of_changed_data(artifact: Artifact, task: Task, config: TaskConfig) -> None:
    """Warn of an artifact's files with examples that have changed, or that are missing: without its
    validation file, texts that it has learned from would become validation texts."""
    before = artifact.card.task.data
    changed = [name for name, digest in task.data.items() if before.get(name, digest) != digest]
    if config.select != 0:
        changed += [name for name in before.keys() - task.data if name.endswith("selection")]
    kinds = {"train": "training", "dev": "held-out", "selection": "validation"}
    for name in changed:
        head, _, split = name.rpartition(" ")  # each of several named tasks has files
        path = task.source.get(name)
        logger.warning(
            "%s: the %s examples%s%s %s since the artifact was made. A model made now is of other "
            "data than the artifact",
            *(artifact.path, kinds[split], f" of {head}" if head else ""),
            *(f" ({path})" if path else "", "have changed" if name in task.data else "have gone"),
        )


def _check_not_chosen_on(artifact: Artifact, config: TaskConfig) -> None:
    """Raise ConfigError if texts that chose or calibrated the artifact would score it.

    With only a held-out file, a share of it became validation texts; the others score in every
    command.
    """
    source = artifact.card.task.source
    before = source.get("select")
    dev = None if config.dev is None else str(config.dev.absolute())
    if source.get("train") or not before or dev is None or source.get("dev") != dev:
        return
    if config.train is not None or config.select not in (None, before):
        setting = f"select={config.select:g}" if config.train is None else f"train={config.train}"
        raise ConfigError(
            f"{setting}: {artifact.place} was chosen and calibrated on a share of {before:g} of "
            f"{source['dev']}, which would score it. Leave it out, or make the artifact again so."
        )
