"""The gain of a student over its control, as a sentence."""

from __future__ import annotations

from bertender.core.findings import ControlFindings, Findings
from bertender.report.cells import number

__all__ = ["control_lines"]


def control_lines(findings: Findings) -> list[str]:
    """Return what distilling gave, of a student that was trained with its control.

    The held-out texts say that; which of the two to deploy, the texts to choose by do.
    """
    control = findings.control
    return [] if control is None else [_sentence(control), *_stuck(control), *_taken(control)]


def _stuck(control: ControlFindings) -> list[str]:
    if control.constant is None:
        return []
    return [
        f"the control {control.constant.words}: it has learned nothing to compare with. Try "
        "another learning_rate, or more epochs"
    ]


def _taken(control: ControlFindings) -> list[str]:
    if control.choice is None or control.choice >= control.control_choice:
        return []
    return [
        f"on the texts to choose by, the control scores {number(control.control_choice)} and the "
        f"student {number(control.choice)}: deploy the control, which `{_flags(control)} --epochs "
        f"{control.epochs}` makes with the same other settings"
    ]


def _sentence(control: ControlFindings) -> str:
    same = f"the same student trained on labels alone for {_length(control)}"
    gain = control.gain
    cheaper = f"labels alone do, `{_flags(control)}` is cheaper"
    points = f"{gain.value:+.1f} points [{gain.low:+.1f}, {gain.high:+.1f}]"
    if gain.low > 0:
        return f"distilling gave {points} over {same}"
    if gain.high < 0:
        return f"distilling lost against {same}: {points}; {cheaper}"
    return f"distilling cannot be distinguished from {same}: {points}; {cheaper}"


def _flags(control: ControlFindings) -> str:
    """Return the flags that train a student on labels alone from the same layers."""
    layers = control.teacher_layers
    return "--method hard" + (f" --teacher-layers {layers}" if layers else "")


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
