"""Commands that look something up: tasks, recipes, doctor and show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from bertender.cli.doctor import findings
from bertender.cli.findings import control_lines, quantization_lines
from bertender.cli.flags import JsonFlag
from bertender.cli.output import (
    artifact_summary,
    print_entry,
    print_json,
    print_listing,
    print_words,
)
from bertender.core.artifact import Artifact, lineage
from bertender.core.machine import environment
from bertender.models.importing import open_artifact
from bertender.recipes.recipe import recipe_names
from bertender.tasks.loading import TASKS

# --- from bertender.cli.list_commands
# bertender tasks, recipes and doctor: what there is. None of them loads PyTorch but the doctor.


def tasks_command() -> Callable[..., None]:
    """Build `bertender tasks`."""

    def command(as_json: JsonFlag = False) -> None:
        rows = [
            {
                "task": name,
                "summary": spec.description,
                "metric": spec.metric,
                "labels": list(spec.labels),
            }
            for name, spec in TASKS.items()
        ]
        if as_json:
            print_json(rows)
            return
        print_listing(rows)
        print_words("Or your own files: --train F --dev F --text-column C --label-column C")

    return command


def recipes_command() -> Callable[..., None]:
    """Build `bertender recipes`."""

    def command(as_json: JsonFlag = False) -> None:
        names = recipe_names()
        if as_json:
            print_json(names)
            return
        for name, summary in names.items():
            print_entry(name, [summary])

    return command


def doctor_command() -> Callable[..., None]:
    """Build `bertender doctor`."""

    def command(as_json: JsonFlag = False) -> None:
        here = environment()
        lines = findings(here)
        if as_json:
            print_json(
                {
                    "environment": here.model_dump(mode="json"),
                    "findings": [finding.model_dump(mode="json") for finding in lines],
                }
            )
            return
        for finding in lines:
            mark, style = ("ok", "green") if finding.ok else ("--", "yellow")
            print_entry(f"{mark}  {finding.name}: {finding.value}", [finding.meaning], style)
        versions = ", ".join(f"{name} {version}" for name, version in here.versions.items())
        print_entry("    versions", [versions], "")

    return command


# --- from bertender.cli.show_commands
# bertender show: an artifact and its lineage.


def show_command() -> Callable[..., None]:
    """Build `bertender show`."""

    def command(
        artifact: Annotated[
            str, typer.Argument(metavar="ARTIFACT", help="directory of an artifact")
        ],
        as_json: JsonFlag = False,
    ) -> None:
        ancestors = list(lineage(open_artifact(artifact)))
        if as_json:
            print_json([_entry(ancestor) for ancestor in ancestors])
            return
        for depth, ancestor in enumerate(ancestors):
            _print_ancestor(ancestor, "  " * depth)

    return command


def _entry(ancestor: Artifact | str) -> dict[str, Any]:
    if isinstance(ancestor, str):
        return {"missing": ancestor}
    return {**artifact_summary(ancestor), "card": ancestor.card.model_dump(mode="json")}


def _print_ancestor(ancestor: Artifact | str, indent: str) -> None:
    if isinstance(ancestor, str):
        print_words(f"{indent}{ancestor}", "yellow")
        return
    card = ancestor.card
    settings = ", ".join(f"{key}={value}" for key, value in card.config.items())
    print_words(
        f"{indent}{ancestor.name} {ancestor.digest[:12]}  stage {card.stage}, {card.kind}, "
        f"{card.family}, {card.precision}, task {card.task.name}",
        "bold",
    )
    print_words(f"{indent}  {settings}")
    for line in (*control_lines(card.findings), *quantization_lines(card.findings)):
        print_words(f"{indent}  {line}")
