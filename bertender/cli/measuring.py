"""bertender verify and bertender compare.

What measures and shows loads PyTorch or a plotting library, and is imported where it runs: options,
paths and settings are checked without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender import api
from bertender.cli.findings import parity_table
from bertender.cli.flags import JsonFlag, OutFile, command_with_flags, settings_of
from bertender.cli.output import console, left_out_rows, print_json, print_table, print_words
from bertender.comparison.records import CompareConfig, Comparison, read_comparison
from bertender.comparison.table import html_report, markdown_table, terminal_table
from bertender.core.config import Record
from bertender.core.files import check_savable, save_result, save_text
from bertender.core.machine import save_note
from bertender.gate.artifacts import Verification, VerifyConfig, verify
from bertender.gate.judge import require_parity
from bertender.tasks.task import TaskConfig

ReferenceArgument = Annotated[
    str, typer.Argument(metavar="REFERENCE", help="artifact that is taken as right")
]
CandidateArgument = Annotated[
    str, typer.Argument(metavar="CANDIDATE", help="artifact to check against it")
]
ArtifactArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="ARTIFACT", help="what to compare; changes are from the first"),
]
SavedFile = Annotated[
    Path | None,
    typer.Option("--saved", metavar="FILE", help="show this saved comparison; measure nothing"),
]
HtmlFile = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="write the report as this HTML file")
]
MarkdownFlag = Annotated[bool, typer.Option("--markdown", help="print Markdown")]
WideFlag = Annotated[bool, typer.Option("--wide", help="show every column")]


def build(name: str) -> Callable[..., None]:
    """Build a command of this module."""
    return verify_command() if name == "verify" else compare_command()


def verify_command() -> Callable[..., None]:
    """Build `bertender verify`."""

    def command(
        reference: ReferenceArgument,
        candidate: CandidateArgument,
        values: dict[str, Any],
        out: OutFile = None,
        as_json: JsonFlag = False,
    ) -> None:
        check_savable("--out", out, "JSON")
        artifacts = api.opened(reference), api.opened(candidate)
        config = VerifyConfig.parse(settings_of(VerifyConfig, values))
        task = api.task_of(artifacts, settings_of(TaskConfig, values))
        from quantize.graph_check import failures_if_quantized

        parity = verify(*artifacts, task, config, failures_if_quantized)
        if out:
            save_result(parity, out)
        if as_json:
            _print_result(parity, left_out_rows(task))
        else:
            console.print(parity_table(parity))
        require_parity(parity)

    return command_with_flags(command, (TaskConfig, VerifyConfig), optional=(TaskConfig,))


def compare_command() -> Callable[..., None]:
    """Build `bertender compare`."""

    def command(
        context: typer.Context,
        values: dict[str, Any],
        artifacts: ArtifactArguments = None,
        out: OutFile = None,
        saved: SavedFile = None,
        html: HtmlFile = None,
        markdown: MarkdownFlag = False,
        wide: WideFlag = False,
        as_json: JsonFlag = False,
    ) -> None:
        for name, is_set in {"--markdown": markdown, "--wide": wide}.items():
            if as_json and is_set:
                raise typer.BadParameter(f"--json and {name}: give one of them.")
        sources = {name: context.get_parameter_source(name) for name in ("artifacts", *values)}
        unused = [name for name, each in sources.items() if each and each.name == "COMMANDLINE"]
        if saved and unused:
            raise typer.BadParameter(
                f"--saved measures nothing, so it takes no {', '.join(unused)}."
            )
        if not saved and not artifacts:
            raise typer.BadParameter("give at least one ARTIFACT, or --saved FILE.")
        check_savable("--out", out, "JSON")
        check_savable("--html", html, "HTML")
        comparison, left_out = (
            (read_comparison(saved), None) if saved else _measure(artifacts or [], values)
        )
        if out:
            save_result(comparison, out)
        if html:
            save_text(html_report(comparison), html)
        if as_json:
            _print_result(comparison, left_out)
        elif markdown:
            print(markdown_table(comparison, wide))
        else:
            print_comparison(comparison, wide)

    return command_with_flags(command, (TaskConfig, CompareConfig), optional=(TaskConfig,))


def show_parity(output: Path) -> None:
    """Print a saved parity."""
    parity = Verification.model_validate_json(output.read_text(encoding="utf-8"))
    print_words(
        f"{parity.candidate} predicts as {parity.reference} does: agreement "
        f"{parity.agreement:.4f} over {parity.texts} texts in {parity.rows} arrangements"
    )


def show_comparison(output: Path) -> None:
    """Print a saved comparison."""
    print_comparison(read_comparison(output))


def print_comparison(comparison: Comparison, wide: bool = False) -> None:
    """Print the table as wide as it needs: a narrow terminal wraps lines, but no cell is cut."""
    print_table(terminal_table(comparison, wide))


def _print_result(result: Record, left_out: dict[str, Any] | None) -> None:
    """Print a result as it is saved, and with it the rows that were left out, if any were."""
    more = {} if left_out is None else {"left_out": left_out}
    print_json({**result.model_dump(mode="json"), **more})


def _measure(paths: list[str], values: dict[str, Any]) -> tuple[Comparison, dict[str, Any] | None]:
    """Return the comparison, and the report on rows that were left out of its task."""
    config = CompareConfig.parse(settings_of(CompareConfig, values))
    artifacts = [api.opened(path) for path in paths]
    task = api.task_of(artifacts, settings_of(TaskConfig, values))
    from bertender.comparison.compare import compare, runtime_note

    comparison = compare(artifacts, task, config)
    if note := runtime_note(comparison):
        save_note(note)
    return comparison, left_out_rows(task)
