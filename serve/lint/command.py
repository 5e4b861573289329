"""bertender lint-repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from bertender.cli.flags import JsonFlag
from bertender.cli.output import print_json, print_words
from serve.lint.findings import Finding
from serve.lint.linting import lint_repository

__all__ = ["lint_repository_command"]


def lint_repository_command() -> Callable[..., None]:
    """Build `bertender lint-repository`."""

    def command(
        directory: Annotated[
            Path, typer.Argument(metavar="DIR", help="model repository of a Triton server")
        ],
        as_json: JsonFlag = False,
    ) -> None:
        findings = lint_repository(directory)
        if as_json:
            records = [finding.model_dump(mode="json") for finding in findings]
            print_json({"repository": str(directory), "findings": records})
        else:
            _print(directory, findings)
        if _count(findings, "error"):
            raise typer.Exit(1)

    return command


def _print(directory: Path, findings: Sequence[Finding]) -> None:
    for finding in findings:
        print_words(f"{finding.severity}: {finding.line}")
    counts = [_count(findings, severity) for severity in ("error", "warning")]
    print_words(f"{directory}: {counts[0]} errors, {counts[1]} warnings")


def _count(findings: Sequence[Finding], severity: str) -> int:
    return sum(finding.severity == severity for finding in findings)
