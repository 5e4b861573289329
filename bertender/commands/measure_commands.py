"""bertender verify and bertender compare."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from bertender.commands.flags import (
    JsonFlag,
    command_with_flags,
    given,
    option_values,
    task_settings,
)
from bertender.commands.show import console, print_json
from bertender.core.artifact import Artifact
from bertender.core.cache import replacing
from bertender.measure.compare import CompareConfig, Comparison, compare
from bertender.measure.parity import require_parity
from bertender.report.parity import parity_table
from bertender.report.table import markdown_table, terminal_table
from bertender.stages import recorded_task
from bertender.steps import VerifyConfig, verify
from bertender.tasks.task import TaskConfig

__all__ = ["compare_command", "print_comparison", "verify_command"]

TABLE_WIDTH = 150
ArtifactPath = Annotated[Path, typer.Argument(metavar="ARTIFACT", help="directory of an artifact")]
OutFile = Annotated[Path | None, typer.Option("--out", help="keep the result in this JSON file")]


def verify_command() -> Callable[..., None]:
    """Build `bertender verify`."""

    def command(
        reference: Annotated[Path, typer.Argument(help="artifact that is right")],
        candidate: Annotated[Path, typer.Argument(help="artifact to check against it")],
        values: dict[str, Any],
        out: OutFile = None,
        as_json: JsonFlag = False,
    ) -> None:
        artifacts = Artifact.load(reference), Artifact.load(candidate)
        task = recorded_task(artifacts[0], task_settings(values))
        config = VerifyConfig.parse(given(option_values(VerifyConfig, values)))
        parity = verify(*artifacts, task, config)
        if out:
            _save(parity.model_dump_json(indent=1), out)
        if as_json:
            print_json(parity.model_dump(mode="json"))
        else:
            console.print(parity_table(parity))
        require_parity(parity)

    return command_with_flags(command, (TaskConfig, VerifyConfig), optional=(TaskConfig,))


def compare_command() -> Callable[..., None]:
    """Build `bertender compare`."""

    def command(
        artifacts: Annotated[
            list[Path] | None, typer.Argument(help="what to compare; changes are from the first")
        ],
        values: dict[str, Any],
        out: OutFile = None,
        saved: Annotated[
            Path | None, typer.Option("--saved", help="show this saved comparison; measure nothing")
        ] = None,
        markdown: Annotated[bool, typer.Option("--markdown", help="print Markdown")] = False,
        as_json: JsonFlag = False,
    ) -> None:
        comparison = _read(saved) if saved else _measure(artifacts or [], values)
        if out:
            _save(comparison.model_dump_json(indent=1), out)
        if as_json:
            print_json(comparison.model_dump(mode="json"))
        elif markdown:
            print(markdown_table(comparison))
        else:
            print_comparison(comparison)

    return command_with_flags(command, (TaskConfig, CompareConfig), optional=(TaskConfig,))


def print_comparison(comparison: Comparison) -> None:
    """Print the table; where no terminal says how wide it is, as wide as the table needs."""
    wide = console if console.is_terminal else Console(width=TABLE_WIDTH)
    wide.print(terminal_table(comparison))


def _measure(paths: list[Path], values: dict[str, Any]) -> Comparison:
    if not paths:
        raise typer.BadParameter("give at least one ARTIFACT, or --saved FILE.")
    artifacts = [Artifact.load(path) for path in paths]
    task = recorded_task(artifacts[0], task_settings(values))
    return compare(
        artifacts, task, CompareConfig.parse(given(option_values(CompareConfig, values)))
    )


def _read(path: Path) -> Comparison:
    return Comparison.model_validate_json(path.read_text(encoding="utf-8"))


def _save(text: str, out: Path) -> None:
    with replacing(out) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
