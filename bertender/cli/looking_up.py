"""Commands that look something up: tasks, methods, schemes, recipes, show and doctor.

Each imports its tables when it runs, and none loads PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from bertender.cli.flags import JsonFlag
from bertender.cli.output import print_entry, print_json, print_listing, print_words

LISTED_LAYERS = 2
"""Depth for which phases are listed; a method that works layer by layer has one phase per layer."""


def build(name: str) -> Callable[..., None]:
    """Build a command of this module."""
    commands: dict[str, Callable[..., None]] = {
        "tasks": tasks,
        "methods": methods,
        "schemes": schemes,
        "recipes": recipes,
        "show": show,
        "doctor": doctor,
    }
    return commands[name]


def tasks(as_json: JsonFlag = False) -> None:
    from bertender.tasks.named import TASKS

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


def methods(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="METHOD", help="show these in full: losses, needs, cost, defaults"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    from distill.methods import CHOICES, GENERAL_METHODS, METHODS

    rows: list[dict[str, Any]] = [_in_full(name) for name in names or ()]
    if not names:
        rows = [
            {
                "method": name,
                "summary": row.summary,
                "on a corpus": "yes" if name in GENERAL_METHODS else "no",
            }
            for name, row in METHODS.items()
        ]
    if as_json:
        print_json(rows)
        return
    print_listing(rows)
    if not names:
        print_words("In full: bertender methods METHOD")
        for choice in CHOICES:
            settings = choice.settings.items()
            flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings)
            print_words(f"auto, {choice.condition}: {flags}")
    print_words("Any of them: bertender distill --method METHOD")


def _in_full(name: str) -> dict[str, Any]:
    from distill.methods import GENERAL_METHODS, METHODS

    def losses(phases: Any) -> list[str]:
        terms = (
            " + ".join(f"{term.weight:g} {term.name}" for term in each.terms) for each in phases
        )
        return [f"{phase.name}: {loss}" for phase, loss in zip(phases, terms, strict=True)]

    method = METHODS[name].at(LISTED_LAYERS)
    on_a_corpus = []
    if name in GENERAL_METHODS:
        general = GENERAL_METHODS[name].at(LISTED_LAYERS)
        on_a_corpus = [*losses(general.phases), *general.conditions]
    return {
        "method": name,
        "summary": method.summary,
        "paper": method.paper,
        "loss": losses(method.phases),
        "needs": [*sorted(method.needs), *method.conditions],
        "cost": method.cost,
        "on a corpus": on_a_corpus,
        "augmentation": [method.augmentation] if method.augmentation else [],
        "defaults": [f"{key}={value}" for key, value in method.settings.items()],
    }


def schemes(as_json: JsonFlag = False) -> None:
    from quantize.config import CANDIDATES, SCHEMES, SENSITIVITIES
    from quantize.integers import AUTO, CALIBRATORS, TARGETS

    tried = [row["scheme"] for row in CANDIDATES]
    rows = [
        {
            "scheme": name,
            "summary": scheme.summary,
            "starts from": scheme.source,
            "settings": sorted(scheme.reads),
            "without --scheme": f"tried as number {tried.index(name) + 1} of {len(tried)}"
            if name in tried
            else "not tried",
        }
        for name, scheme in SCHEMES.items()
    ]
    choices: dict[str, dict[str, list[str]]] = {
        "target": {
            AUTO: ["what suits the machine that quantizes"],
            **{name: [row.summary, row.refused] for name, row in TARGETS.items()},
        },
        "calibrator": {name: [row.summary] for name, row in CALIBRATORS.items()},
        "sensitivity": {name: [summary] for name, summary in SENSITIVITIES.items()},
    }
    if as_json:
        named = {
            setting: [
                dict(
                    zip(("name", "summary", "refused"), (name, *filter(None, lines)), strict=False)
                )
                for name, lines in of.items()
            ]
            for setting, of in choices.items()
        }
        print_json({"schemes": rows, **named})
        return
    print_listing(rows)
    for setting, lines_by_name in choices.items():
        for name, lines in lines_by_name.items():
            print_entry(f"--{setting} {name}", lines, "")


def recipes(as_json: JsonFlag = False) -> None:
    from bertender.recipes.recipe import recipe_names

    names = recipe_names()
    if as_json:
        print_json(names)
        return
    for name, summary in names.items():
        print_entry(name, [summary])


def show(
    artifact: Annotated[str, typer.Argument(metavar="ARTIFACT", help="directory of an artifact")],
    as_json: JsonFlag = False,
) -> None:
    from bertender.cli.findings import (
        calibration_lines,
        control_lines,
        language_lines,
        quantization_lines,
        teacher_lines,
    )
    from bertender.cli.output import artifact_summary
    from bertender.core.artifact import lineage
    from bertender.models.importing import open_artifact

    ancestors = list(lineage(open_artifact(artifact)))
    if as_json:
        print_json(
            [
                {"missing": each}
                if isinstance(each, str)
                else {**artifact_summary(each), "card": each.card.model_dump(mode="json")}
                for each in ancestors
            ]
        )
        return
    for depth, ancestor in enumerate(ancestors):
        indent = "  " * depth
        if isinstance(ancestor, str):
            print_words(f"{indent}{ancestor}", "yellow")
            continue
        card = ancestor.card
        print_words(
            f"{indent}{ancestor.name} {ancestor.digest[:12]}  stage {card.stage}, {card.kind}, "
            f"{card.family}, {card.precision}, task {card.task.name}",
            "bold",
        )
        print_words(
            f"{indent}  {', '.join(f'{key}={value}' for key, value in card.config.items())}"
        )
        own = ancestor.has_own_calibration
        for line in (
            *language_lines(card.findings),
            *teacher_lines(card.findings),
            *control_lines(card.findings),
            *quantization_lines(card.findings),
            *calibration_lines(card.task, card.findings, is_own=own),
        ):
            print_words(f"{indent}  {line}")


def doctor(as_json: JsonFlag = False) -> None:
    from bertender.cli.doctor import findings
    from bertender.core.machine import environment

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
