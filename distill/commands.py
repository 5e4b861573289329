"""bertender methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bertender.cli.flags import JsonFlag
from bertender.cli.output import print_json, print_listing, print_words
from distill.methods import CHOICES, GENERAL_METHODS, METHODS

if TYPE_CHECKING:
    from distill.methods.method import Phase

LISTED_LAYERS = 2
"""The depth that phases are listed for; a method that goes layer by layer has one for each."""

NamesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="METHOD", help="show these in full: losses, needs, cost, defaults"),
]


def methods_command() -> Callable[..., None]:
    """Build `bertender methods`."""

    def command(names: NamesArgument = None, as_json: JsonFlag = False) -> None:
        rows = [_in_full(name) for name in names] if names else _in_short()
        if as_json:
            print_json(rows)
            return
        print_listing(rows)
        if not names:
            print_words("In full: bertender methods METHOD")
            for choice in CHOICES:
                print_words(f"auto, {choice.condition}: {_as_flags(choice.settings)}")
        print_words("Any of them: bertender distill --method METHOD")

    return command


def _as_flags(settings: Mapping[str, Any]) -> str:
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items())


def _in_short() -> list[dict[str, Any]]:
    return [
        {"method": name, "summary": row.summary, "on a corpus": _yes(name in GENERAL_METHODS)}
        for name, row in METHODS.items()
    ]


def _in_full(name: str) -> dict[str, Any]:
    method = METHODS[name].at(LISTED_LAYERS)
    return {
        "method": name,
        "summary": method.summary,
        "paper": method.paper,
        "loss": [_loss(phase) for phase in method.phases],
        "needs": [*sorted(method.needs), *method.conditions],
        "cost": method.cost,
        "on a corpus": _general(name),
        "augmentation": [method.augmentation] if method.augmentation else [],
        "defaults": [f"{key}={value}" for key, value in method.settings.items()],
    }


def _yes(whether: bool) -> str:
    return "yes" if whether else "no"


def _general(name: str) -> list[str]:
    """Return what a method's general stage reads and wants; nothing where it has none."""
    if name not in GENERAL_METHODS:
        return []
    method = GENERAL_METHODS[name].at(LISTED_LAYERS)
    return [*map(_loss, method.phases), *method.conditions]


def _loss(phase: Phase) -> str:
    return f"{phase.name}: " + " + ".join(f"{term.weight:g} {term.name}" for term in phase.terms)
