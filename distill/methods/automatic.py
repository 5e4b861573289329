"""`auto`: the method that is taken where none is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

AUTO = "auto"


@dataclass(frozen=True)
class Choice:
    """A row of CHOICES."""

    condition: str
    """In words, for documents."""
    holds: Callable[[Mapping[str, Any]], bool]
    """explicit settings -> whether it is for them"""
    settings: Mapping[str, Any]
    """The method, and defaults that take the place of its own."""


CHOICES = (
    Choice(
        "where a student starts from another encoder",
        lambda settings: settings.get("student") is not None,
        {"method": "pd"},
    ),
    Choice("elsewhere", lambda settings: True, {"method": "distilbert"}),
)
"""The first that holds is taken."""


def automatic_settings(explicit: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of the first row of CHOICES that holds."""
    return next(choice.settings for choice in CHOICES if choice.holds(explicit))
