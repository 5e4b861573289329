"""bertender tasks, recipes and doctor: what there is. None of them loads PyTorch but the doctor."""

from __future__ import annotations

from collections.abc import Callable

from bertender.cli.flags import JsonFlag
from bertender.cli.output import print_entry, print_json, print_listing, print_words
from bertender.core.environment import environment
from bertender.pipeline.doctor import findings
from bertender.pipeline.recipe import recipe_names
from bertender.tasks.registry import TASKS

__all__ = ["doctor_command", "recipes_command", "tasks_command"]


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
