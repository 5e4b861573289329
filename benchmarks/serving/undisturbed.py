"""Measurements that are made anew where other work disturbed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from bertender.core.errors import MachineBusyError

__all__ = ["undisturbed"]

TRIES = 3

Measured = TypeVar("Measured")


def undisturbed(measure: Callable[[], Measured]) -> Measured:
    """Return a measurement; one that other work disturbed is made anew, TRIES times in all.

    Whether it is, its load alone says, so this chooses no figures.
    """
    for _ in range(TRIES - 1):
        try:
            return measure()
        except MachineBusyError as error:
            typer.echo(f"measured again: {error}", err=True)
    return measure()
