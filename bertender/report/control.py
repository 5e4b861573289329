"""The gain of a student over its control, as a sentence."""

from __future__ import annotations

from bertender.core.findings import ControlFindings, Findings
from bertender.report.cells import number

__all__ = ["control_lines"]

CHEAPER = "labels alone do, `--method hard` is cheaper"


def control_lines(findings: Findings) -> list[str]:
    """Return what distilling gave, of a student that was trained with its control.

    The held-out texts say that; which of the two to deploy, the texts to choose by do.
    """
    control = findings.control
    return [] if control is None else [_sentence(control), *_taken(control)]


def _taken(control: ControlFindings) -> list[str]:
    if control.choice is None or control.choice >= control.control_choice:
        return []
    return [
        f"on the texts to choose by, the control scores {number(control.control_choice)} and the "
        f"student {number(control.choice)}: deploy the control, which `--method hard --epochs "
        f"{control.epochs}` makes with the same other settings"
    ]


def _sentence(control: ControlFindings) -> str:
    same = f"the same student trained on labels alone for {_length(control)}"
    gain = control.gain
    points = f"{gain.value:+.1f} points [{gain.low:+.1f}, {gain.high:+.1f}]"
    if gain.low > 0:
        return f"distilling gave {points} over {same}"
    if gain.high < 0:
        return f"distilling lost against {same}: {points}; {CHEAPER}"
    return f"distilling cannot be distinguished from {same}: {points}; {CHEAPER}"


def _length(control: ControlFindings) -> str:
    """Return how long the better control was trained, and why so long."""
    epochs, longest = (_epochs(count) for count in (control.epochs, control.runs[-1].epochs))
    if control.epochs < control.runs[-1].epochs:
        return f"{epochs} (as its last phase; {longest} scored no more)"
    if control.epochs < control.equal_epochs:
        return f"{epochs} (the most; equal computation is {_epochs(control.equal_epochs)})"
    return f"{epochs} (equal computation)"


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"
