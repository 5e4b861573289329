"""bertender import."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.cli.flags import ForceFlag, JsonFlag, command_with_flags
from bertender.cli.output import artifact_summary, print_artifact, print_json
from bertender.cli.task_flags import task_settings
from bertender.core.config import parts_of
from bertender.pipeline.calls import imported
from bertender.tasks.task import TaskConfig

__all__ = ["import_command"]


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
