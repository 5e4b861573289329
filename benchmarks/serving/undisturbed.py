"""Measurements that are made anew where other work disturbed them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import typer

from bertender.core.errors import MachineBusyError

__all__ = ["undisturbed"]

TRIES = 3

Measured = TypeVar("Measured")


def undisturbed(what: str, measure: Callable[[], Measured]) -> Measured:
    """Return a measurement; one that other work disturbed is made anew, TRIES times in all.

    Whether it is, its load alone says, so this chooses no figures.

    Args:
        what: is measured, for messages.
        measure: measures it.

    Raises:
        MachineBusyError: other work disturbed the last one, too.
    """
    for number in range(1, TRIES):
        try:
            return measure()
        except MachineBusyError as error:
            reason = str(error).partition(". ")[0]  # its advice is for who gives up
            typer.echo(f"{what} is measured again, {number} of {TRIES - 1}: {reason}", err=True)
    return measure()
