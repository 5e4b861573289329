"""bertender tasks, methods, schemes and doctor: what there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertender.cli.flags import JsonFlag
from bertender.cli.output import print_entry, print_json, say
from bertender.core.environment import environment
from bertender.pipeline.doctor import findings
from bertender.tasks.registry import TASKS
from distill.methods import GENERAL_METHODS, METHODS, Phase
from quantize.calibrators import CALIBRATORS
from quantize.candidates import CANDIDATES
from quantize.schemes import SCHEMES
from quantize.sensitivity import SENSITIVITIES
from quantize.targets import AUTO, TARGETS

__all__ = ["doctor_command", "methods_command", "schemes_command", "tasks_command"]

TWO_LAYERS = 2
"""The depth that phases are listed for; a method that goes layer by layer has one for each."""


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
        _print(rows)
        say("Or your own files: --train F --dev F --text-column C --label-column C")

    return command


def methods_command() -> Callable[..., None]:
    """Build `bertender methods`."""

    def command(as_json: JsonFlag = False) -> None:
        rows = [
            {
                "method": name,
                "summary": method.summary,
                "paper": method.paper,
                "loss": [_loss(phase) for phase in method.phases(TWO_LAYERS)],
                "needs": [*sorted(method.needs), *method.conditions],
                "cost": method.cost,
                "on a corpus": _general(name),
                "augmentation": [method.augmentation] if method.augmentation else [],
                "defaults": [f"{key}={value}" for key, value in method.settings.items()],
            }
            for name, method in METHODS.items()
        ]
        if as_json:
            print_json(rows)
            return
        _print(rows)
        say("An augmentation is its paper's, and off until it is asked for: --augmentation A")

    return command


def _general(name: str) -> list[str]:
    """Return what a method's general stage reads and wants; nothing where it has none."""
    if name not in GENERAL_METHODS:
        return []
    method = GENERAL_METHODS[name]
    return [*map(_loss, method.phases(TWO_LAYERS)), *method.conditions]


def _loss(phase: Phase) -> str:
    return f"{phase.name}: " + " + ".join(f"{term.weight:g} {term.name}" for term in phase.terms)


def schemes_command() -> Callable[..., None]:
    """Build `bertender schemes`."""

    def command(as_json: JsonFlag = False) -> None:
        rows = [
            {
                "scheme": name,
                "summary": scheme.summary,
                "starts from": scheme.source,
                "settings": sorted(scheme.reads),
                "without --scheme": _turn(name),
            }
            for name, scheme in SCHEMES.items()
        ]
        choices: dict[str, dict[str, list[str]]] = {
            "target": {
                AUTO: ["what suits the machine that quantizes"],
                **{name: [row.summary, row.refused] for name, row in TARGETS.items()},
            },
            "calibrator": {name: [row.summary] for name, row in CALIBRATORS.items()},
            "sensitivity": {name: [row.summary] for name, row in SENSITIVITIES.items()},
        }
        if as_json:
            print_json({"schemes": rows, **{key: _as_rows(of) for key, of in choices.items()}})
            return
        _print(rows)
        for setting, said in choices.items():
            for name, lines in said.items():
                print_entry(f"--{setting} {name}", lines, "")

    return command


def _turn(scheme: str) -> str:
    """Return when a scheme is tried where none is named."""
    names = [row["scheme"] for row in CANDIDATES]
    if scheme not in names:
        return "not tried"
    return f"tried as number {names.index(scheme) + 1} of {len(names)}"


def _as_rows(said: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return what can be chosen: its name, what it is, and why it is refused, if it is."""
    return [
        dict(zip(("name", "summary", "refused"), (name, *filter(None, lines)), strict=False))
        for name, lines in said.items()
    ]


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
        for finding in found:
            mark, style = ("ok", "green") if finding.ok else ("--", "yellow")
            print_entry(f"{mark}  {finding.name}: {finding.value}", [finding.meaning], style)
        versions = ", ".join(f"{name} {version}" for name, version in here.versions.items())
        print_entry("    versions", [versions], "")

    return command


def _print(rows: list[dict[str, Any]]) -> None:
    """Print rows, whose first value is a name and whose second is what it is."""
    for row in rows:
        (_, name), (_, summary), *rest = row.items()
        print_entry(name, [summary, *(f"{key}: {_words(value)}" for key, value in rest)])


def _words(value: Any) -> str:
    words = ", ".join(value) if isinstance(value, list) else str(value)
    return words or "nothing"
