"""Commands that write one artifact: those of the stages, and `import`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import (
    ForceFlag,
    JsonFlag,
    TeacherOption,
    command_with_flags,
    explicit,
    option_values,
    task_settings,
)
from bertender.cli.output import artifact_summary, print_artifact, print_json
from bertender.core.artifact import Artifact
from bertender.core.config import Config, parts_of
from bertender.core.errors import ConfigError
from bertender.core.machine import is_main_process
from bertender.models.importing import open_artifact
from bertender.recipes.calls import imported
from bertender.recipes.recorded_task import recorded_task
from bertender.recipes.stage import Stage
from bertender.recipes.stages import STAGES
from bertender.tasks.loading import TASKS, load_task
from bertender.tasks.task import Task, TaskConfig

# --- from bertender.cli.stage_commands
# The commands of the stages: bertender pretrain, baseline, finetune, distill, export, quantize.

OutOption = Annotated[
    Path, typer.Option("--out", metavar="DIRECTORY", help="where to write the artifact")
]
ArtifactArgument = Annotated[str, typer.Argument(metavar="ARTIFACT", help="artifact to start from")]


def stage_command(name: str) -> Callable[..., None]:
    """Build the command of a stage from its row of STAGES."""
    stage = STAGES[name]
    builder = {None: _from_nothing, "teacher": _from_teacher, "artifact": _from_artifact}
    return builder[stage.source](stage)


def _from_nothing(stage: Stage) -> Callable[..., None]:
    def command(
        out: OutOption,
        values: dict[str, Any],
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        config = _config(stage, values)
        stage.check_out(config, out, force)
        task = _named_task(task_settings(values)) if stage.needs_task else None
        _run(stage, [], task, config, out, as_json)

    configs = (TaskConfig, stage.config) if stage.needs_task else (stage.config,)
    return command_with_flags(command, configs)


def _named_task(settings: Mapping[str, Any]) -> Task:
    """Load the task that the flags name; none is a default to train on by mistake."""
    if not {"task", "train", "dev"} & set(settings):
        raise ConfigError(
            "no data: give your files with --train FILE and --dev FILE (CSV, TSV, JSONL or "
            f"Parquet; --text-column and --label-column name their columns), or --task NAME: "
            f"{', '.join(TASKS)}."
        )
    return load_task(TaskConfig.parse(settings))


def _from_teacher(stage: Stage) -> Callable[..., None]:
    def command(
        teacher: TeacherOption,
        out: OutOption,
        values: dict[str, Any],
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        _run_from(stage, teacher, values, out, force, as_json)

    return command_with_flags(command, (TaskConfig, stage.config), optional=(TaskConfig,))


def _from_artifact(stage: Stage) -> Callable[..., None]:
    def command(
        artifact: ArtifactArgument,
        out: OutOption,
        values: dict[str, Any],
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        _run_from(stage, artifact, values, out, force, as_json)

    return command_with_flags(command, (TaskConfig, stage.config), optional=(TaskConfig,))


def _run_from(
    stage: Stage, path: str, values: dict[str, Any], out: Path, force: bool, as_json: bool
) -> None:
    """Run a stage on an artifact, on the task that the flags name or the artifact records."""
    config = _config(stage, values)
    stage.check_out(config, out, force)
    source = open_artifact(path)
    task = recorded_task(source, task_settings(values))
    _run(stage, [source], task, config, out, as_json)


def _config(stage: Stage, values: dict[str, Any]) -> Config:
    return stage.parse(explicit(option_values(stage.config, values)))


def _run(
    stage: Stage,
    sources: list[Artifact],
    task: Task | None,
    config: Config,
    out: Path,
    as_json: bool,
) -> None:
    written = stage.make(sources, task, config, out)
    if not is_main_process():
        return
    if as_json:
        print_json(artifact_summary(written))
    else:
        print_artifact(written)


# --- from bertender.cli.import_command
# bertender import.


def import_command() -> Callable[..., None]:
    """Build `bertender import`."""

    def command(
        source: Annotated[
            str,
            typer.Argument(
                metavar="SOURCE",
                help="folder of transformers, folder or file of ONNX, or hub name",
            ),
        ],
        out: Annotated[
            Path, typer.Option("--out", metavar="DIRECTORY", help="where to write the artifact")
        ],
        values: dict[str, Any],
        revision: Annotated[
            str | None, typer.Option("--revision", help="commit, branch or tag of a hub name")
        ] = None,
        labels: Annotated[
            str | None,
            typer.Option(
                "--labels", help="names of the labels by commas, in the order of the logits"
            ),
        ] = None,
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        if revision and Path(source).exists():
            raise typer.BadParameter(f"--revision is that of a hub name, and {source} is a path.")
        named = f"{source}@{revision}" if revision else source
        chosen = None if labels is None else parts_of(labels)
        artifact = imported(named, out, chosen, task_settings(values), force=force)
        if as_json:
            print_json(artifact_summary(artifact))
        else:
            print_artifact(artifact)

    return command_with_flags(command, (TaskConfig,), optional=(TaskConfig,))
