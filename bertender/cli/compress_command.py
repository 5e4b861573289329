"""bertender compress.

What does the work loads PyTorch and is imported where it runs: settings are read without it.
"""

from __future__ import annotations

from collections.abc import Callable
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
from bertender.cli.output import messages, print_json, print_table, print_words
from bertender.compression.config import CompressConfig
from bertender.compression.report import (
    MODEL,
    CompressionReport,
    sentence,
    serve_command,
    terminal_report,
)
from bertender.core.errors import AccuracyError
from bertender.models.importing import open_artifact
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import TaskConfig

OutOption = Annotated[
    Path,
    typer.Option("--out", metavar="DIRECTORY", help="where to put the model and the report"),
]
DryRunFlag = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="show the plan with predicted figures; only a few models are made, to measure",
    ),
]


def compress_command() -> Callable[..., None]:
    """Build `bertender compress`."""

    def command(
        teacher: TeacherOption,
        out: OutOption,
        values: dict[str, Any],
        dry_run: DryRunFlag = False,
        force: ForceFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        config = CompressConfig.parse(explicit(option_values(CompressConfig, values)))
        source = open_artifact(teacher)
        task = recorded_task(source, task_settings(values))
        from bertender.compression.compress import Compression

        compression = Compression(source, task, config, out, _announce, force)
        report = compression.plan() if dry_run else compression.run()
        _show(report, out, as_json)
        _check_verdict(report, out)

    return command_with_flags(command, (TaskConfig, CompressConfig), optional=(TaskConfig,))


def _announce(text: str) -> None:
    messages.print(text, highlight=False, markup=False)


def _show(report: CompressionReport, out: Path, as_json: bool) -> None:
    if as_json:
        print_json(report.model_dump(mode="json"))
        return
    print_table(terminal_report(report))
    print_words(sentence(report))
    if report.chosen is not None:
        print_words(f"{out / MODEL}: {serve_command(report, out / MODEL)}", "dim")


def _check_verdict(report: CompressionReport, out: Path) -> None:
    """Raise AccuracyError where the best model does not score as asked."""
    if report.verdict == "score not met":
        raise AccuracyError(
            f"{sentence(report)} It lies at {out / MODEL}. Give a lower min_score, more room "
            "(max_mb, max_ms), unlabelled texts, or more epochs."
        )
