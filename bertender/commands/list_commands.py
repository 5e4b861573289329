"""bertender tasks, methods, show and doctor: what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from bertender.commands.flags import JsonFlag
from bertender.commands.show import artifact_summary, console, print_json, print_rows
from bertender.core.artifact import Artifact
from bertender.core.environment import environment, findings
from bertender.core.errors import ArtifactError
from bertender.tasks.registry import TASKS
from distill.methods import METHODS

__all__ = ["doctor_command", "methods_command", "show_command", "tasks_command"]


def tasks_command() -> Callable[..., None]:
    """Build `bertender tasks`."""

    def command(as_json: JsonFlag = False) -> None:
        rows = [
            {
                "task": name,
                "description": spec.description,
                "metric": spec.metric,
                "labels": list(spec.labels),
            }
            for name, spec in TASKS.items()
        ]
        _print(rows, as_json)
        if not as_json:
            console.print("Or your own files: --train F --dev F --text-column C --label-column C")

    return command


def methods_command() -> Callable[..., None]:
    """Build `bertender methods`."""

    def command(as_json: JsonFlag = False) -> None:
        rows = [
            {
                "method": name,
                "summary": method.summary,
                "paper": method.paper,
                "needs of the teacher": sorted(method.needs),
                "loss": [f"{term.name}={term.weight:g}" for term in method.terms],
            }
            for name, method in METHODS.items()
        ]
        _print(rows, as_json)

    return command


def show_command() -> Callable[..., None]:
    """Build `bertender show`."""

    def command(
        artifact: Annotated[Path, typer.Argument(help="directory of an artifact")],
        as_json: JsonFlag = False,
    ) -> None:
        lineage = list(_lineage(Artifact.load(artifact)))
        if as_json:
            print_json([_entry(ancestor) for ancestor in lineage])
            return
        for depth, ancestor in enumerate(lineage):
            _print_ancestor(ancestor, depth)

    return command


def doctor_command() -> Callable[..., None]:
    """Build `bertender doctor`."""

    def command(as_json: JsonFlag = False) -> None:
        here = environment()
        found = findings(here)
        if as_json:
            print_json(
                {
                    "environment": here.model_dump(mode="json"),
                    "findings": [finding.model_dump(mode="json") for finding in found],
                }
            )
            return
        marks = {True: "[green]ok[/green]", False: "[yellow]--[/yellow]"}
        rows = [(marks[bool(f.ok)], f.name, f.value, f.meaning) for f in found]
        print_rows(("", "what", "found", "what it means"), rows)
        console.print(
            "versions: " + ", ".join(f"{name} {value}" for name, value in here.versions.items()),
            highlight=False,
        )

    return command


def _lineage(artifact: Artifact) -> Iterator[Artifact | str]:
    """Yield an artifact and its ancestors; one that is gone, or another by now, as words."""
    yield artifact
    while parent := artifact.card.parent:
        path = artifact.path.resolve() / parent.path
        try:
            artifact = Artifact.load(path)
        except ArtifactError as error:
            yield f"parent {parent.digest[:12]}: {error}"
            return
        if artifact.digest != parent.digest:
            yield f"parent {parent.digest[:12]}: {path.resolve()} holds another artifact by now"
            return
        yield artifact


def _entry(ancestor: Artifact | str) -> dict[str, Any]:
    if isinstance(ancestor, str):
        return {"missing": ancestor}
    return {**artifact_summary(ancestor), "card": ancestor.card.model_dump(mode="json")}


def _print_ancestor(ancestor: Artifact | str, depth: int) -> None:
    indent = "  " * depth
    if isinstance(ancestor, str):
        console.print(f"{indent}[yellow]{ancestor}[/yellow]", highlight=False)
        return
    card = ancestor.card
    settings = ", ".join(f"{key}={value}" for key, value in card.config.items())
    console.print(
        f"{indent}[bold]{ancestor.name}[/bold] {ancestor.digest[:12]}  stage {card.stage}, "
        f"{card.kind}, {card.family}, {card.precision}, task {card.task.name}\n"
        f"{indent}  {settings}",
        highlight=False,
        soft_wrap=True,
    )


def _print(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    cells = [[", ".join(v) if isinstance(v, list) else str(v) for v in r.values()] for r in rows]
    print_rows(list(rows[0]), cells)
