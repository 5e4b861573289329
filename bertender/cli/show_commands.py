"""bertender show: an artifact and its lineage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag
from bertender.cli.output import artifact_summary, print_json, print_words
from bertender.core.artifact import Artifact
from bertender.core.lineage import lineage
from bertender.models.importing import open_artifact
from bertender.report.control import control_lines
from bertender.report.quantization import quantization_lines

__all__ = ["show_command"]


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
