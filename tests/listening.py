"""Training runs that tests listen to: their steps are listed, interrupted, or must not be there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bertender.training.loop import Step, listen_to_steps


@contextmanager
def listed_steps() -> Iterator[list[Step]]:
    """List the steps that are trained in the block."""
    steps: list[Step] = []
    with listen_to_steps(steps.append):
        yield steps


@contextmanager
def interrupted_at(count: int, phase: str = "") -> Iterator[list[Step]]:
    """Interrupt training in its `count`-th step in the block, as Ctrl-C does; list the steps.

    Of a stage that trains in phases, steps of the phase of that name are counted, if one is given.
    """
    with listed_steps() as steps:

        def interrupt(step: Step) -> None:
            counted = [each for each in steps if not phase or phase_of(each) == phase]
            if len(counted) == count and counted[-1] is step:
                raise KeyboardInterrupt

        with listen_to_steps(interrupt):
            yield steps


def phase_of(step: Step) -> str:
    """Return the name of a step's phase, which is that of the folder of its checkpoints."""
    return step.work.name.partition("-")[2]


@contextmanager
def no_training() -> Iterator[None]:
    """Fail the test if anything is trained in the block."""

    def fail(step: Step) -> None:
        pytest.fail(f"it trained: {step.description}, step {step.number}")

    with listen_to_steps(fail):
        yield
