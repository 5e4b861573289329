"""Training runs that tests listen to: their steps are listed, interrupted, or must not be there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from bertender.training import loop
from bertender.training.examples import TensorBatch


@dataclass(frozen=True)
class Step:
    """A step of a training run, once its loss is computed and before it changes the model."""

    number: int
    """From 0; a resumed run continues the count."""
    description: str
    """Text of the progress bar."""
    work: Path
    """Directory of the run's checkpoints; each phase of a stage has its own."""
    batch: TensorBatch
    """The first of its parts."""
    losses: Mapping[str, torch.Tensor]


@contextmanager
def listened(listener: Callable[[Step], None]) -> Iterator[None]:
    """Call `listener` in each step that is trained in the block."""
    descriptions = [""]

    def progress_bar(description: str, *arguments: Any) -> Any:
        descriptions.append(description)
        return really_bar(description, *arguments)

    def training_step(trainer: Any, model: Any, inputs: Sequence[TensorBatch], *more: Any) -> Any:
        minimised, losses = trainer.minimised, dict[str, torch.Tensor]()

        def recorded(*arguments: Any) -> Any:
            parts = minimised(*arguments)
            losses.update({name: part.detach() for name, part in parts.items()})
            return parts

        trainer.minimised = recorded
        loss = really(trainer, model, inputs, *more)
        trainer.minimised = minimised
        number, work = trainer.state.global_step, Path(trainer.args.output_dir)
        listener(Step(number, descriptions[-1], work, inputs[0], losses))
        return loss

    really, really_bar = loop.PlannedTrainer.training_step, loop.progress_bar
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.PlannedTrainer, "training_step", training_step)
        patch.setattr(loop, "progress_bar", progress_bar)
        yield


@contextmanager
def listed_steps() -> Iterator[list[Step]]:
    """List the steps that are trained in the block."""
    steps: list[Step] = []
    with listened(steps.append):
        yield steps


@contextmanager
def interrupted_at(count: int, phase: str = "") -> Iterator[list[Step]]:
    """Interrupt training in its `count`-th step in the block, as Ctrl-C does; list the steps.

    Of a stage that trains in phases, steps of the phase of that name are counted, if one is given.
    """
    steps: list[Step] = []

    def interrupt(step: Step) -> None:
        steps.append(step)
        counted = [each for each in steps if not phase or phase_of(each) == phase]
        if len(counted) == count and counted[-1] is step:
            raise KeyboardInterrupt

    with listened(interrupt):
        yield steps


def phase_of(step: Step) -> str:
    """Return the name of a step's phase, which is that of the folder of its checkpoints."""
    return step.work.name.partition("-")[2]


@contextmanager
def no_training() -> Iterator[None]:
    """Fail the test if anything is trained in the block."""

    def fail(step: Step) -> None:
        pytest.fail(f"it trained: {step.description}, step {step.number}")

    with listened(fail):
        yield
