"""bertender methods."""

from __future__ import annotations

from collections.abc import Callable

from bertender.cli.flags import JsonFlag
from bertender.cli.output import print_json, print_listing, say
from distill.methods import GENERAL_METHODS, METHODS, Phase

__all__ = ["methods_command"]

TWO_LAYERS = 2
"""The depth that phases are listed for; a method that goes layer by layer has one for each."""


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
        print_listing(rows)
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
