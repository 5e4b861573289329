"""A stage as a Python call: the paths, objects and plain settings that a user gives it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from bertender.core.artifact import Artifact, check_not_finished, copy_artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.models.importing import import_model, open_artifact
from bertender.recipes.recipe import Setting
from bertender.recipes.recorded_task import recorded_task, task_of_models
from bertender.recipes.stage import Stage
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig

PathLike: TypeAlias = str | os.PathLike[str]
ArtifactLike: TypeAlias = Artifact | PathLike
TaskLike: TypeAlias = Task | str | Mapping[str, Any]


def make(
    name: str,
    sources: Sequence[ArtifactLike],
    task: TaskLike | None,
    settings: Mapping[str, Any],
    out: PathLike,
    *,
    force: bool = False,
) -> Artifact:
    """Run a stage that writes an artifact; with `force`, over one that is finished."""
    stage = STAGES[name]
    config = stage.parse(plain(settings))
    stage.check_out(config, Path(out), force)
    artifacts = [opened(source) for source in sources]
    return stage.make(artifacts, _task(stage, artifacts, task), config, Path(out))


def report(
    name: str,
    sources: Sequence[ArtifactLike],
    task: TaskLike | None,
    settings: Mapping[str, Any],
    out: PathLike | None,
) -> Record:
    """Run a stage that reports; the report is saved at `out`, if there is one."""
    stage = STAGES[name]
    config = stage.parse(plain(settings))
    artifacts = [opened(source) for source in sources]
    loaded = _task(stage, artifacts, task)
    with TemporaryDirectory(prefix="bertender-report-") as folder:
        place = Path(folder, "report.json") if out is None else Path(out)
        made = stage.run(artifacts, loaded, config, place)
    assert isinstance(made, Record)
    return made


def opened(source: ArtifactLike, *, verify: bool = True) -> Artifact:
    """Return an artifact, loaded if this is its path, and then its digests checked by default."""
    return source if isinstance(source, Artifact) else open_artifact(source, verify=verify)


def imported(
    source: PathLike,
    out: PathLike,
    labels: Sequence[str] | None,
    task: Mapping[str, Any],
    *,
    force: bool = False,
) -> Artifact:
    """Write a finished model as an artifact, with the task that the settings name, if any."""
    check_not_finished(Path(out), force)
    with TemporaryDirectory(prefix="bertender-import-") as folder:
        made = import_model(source, Path(folder, Path(out).name), labels=labels)
        if set(task) & {"task", "train", "dev"}:
            judged = recorded_task(made, plain(task))
            judged.check_problem(made)
            made = made.of_task(judged.record())
        elif task:
            made = _with_columns(made, task)
        return copy_artifact(made, Path(out))


def _with_columns(artifact: Artifact, settings: Mapping[str, Any]) -> Artifact:
    """Return a model without data with the columns of its texts: two, where it reads pairs."""
    if unread := set(settings) - {"text_column", "pair_column"}:
        raise ConfigError(
            f"{', '.join(sorted(unread))}: for data, and none are named. Give --dev FILE besides, "
            "or leave it out."
        )
    config = TaskConfig.parse(plain(settings))
    first = settings.get("text_column", artifact.card.task.text_columns[0])
    columns = (str(first), *([config.pair_column] if config.pair_column else []))
    record = artifact.card.task.model_copy(update={"text_columns": columns})
    return replace(artifact, card=artifact.card.model_copy(update={"task": record}))


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as a command or a recipe has them: artifacts and paths by their names."""
    return {name: _plain(value) for name, value in settings.items()}


def changes(settings: Mapping[str, Any]) -> Iterable[Setting]:
    """Yield the changes of a recipe that `STEP.KEY` -> value names."""
    for place, value in settings.items():
        step, _, key = place.partition(".")
        yield Setting(step, key, _plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, Artifact):
        return str(value.path)
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def task_of(artifacts: Sequence[Artifact], task: TaskLike | None) -> Task:
    """Return the task to work on: the one that is named, or that the first artifact records."""
    if isinstance(task, Task):
        return task
    settings = {"task": task} if isinstance(task, str) else plain(task or {})
    if artifacts:
        return task_of_models(artifacts, settings)
    return load_task(TaskConfig.parse(settings))


def _task(stage: Stage, artifacts: Sequence[Artifact], task: TaskLike | None) -> Task | None:
    return task_of(artifacts, task) if stage.needs_task else None
