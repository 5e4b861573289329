"""Listeners of the steps of a training run, whichever stage runs it.

    with listen_to_steps(lambda step: print(step.number, step.losses)):
        finetune(model, tokenizer, task, config, out)

Listeners belong to the context of the call and are not an argument of `train`: a stage trains in
phases and rounds, several calls below what its user calls, and none of these needs to pass on what
it does not use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

import torch

from bertender.training.examples import TensorBatch

__all__ = ["Step", "StepListener", "listen_to_steps", "report_step"]


@dataclass(frozen=True)
class Step:
    """A step of a training run, once its loss is computed and before it changes the model."""

    number: int
    """From 0; a resumed run continues the count."""
    steps: int
    """Of the whole run."""
    description: str
    """Text of the progress bar."""
    work: Path
    """Directory of the run's checkpoints; each phase of a stage has its own."""
    batch: TensorBatch
    """What this process reads of it."""
    losses: Mapping[str, torch.Tensor]
    """The weighted parts of the loss, detached. On a GPU, reading them waits for it."""


StepListener = Callable[[Step], None]

_listeners: ContextVar[tuple[StepListener, ...]] = ContextVar("step listeners", default=())


@contextmanager
def listen_to_steps(listener: StepListener) -> Iterator[None]:
    """Call `listener` in each step that is trained in the block, in this thread and process.

    What it raises ends the training as an error or Ctrl-C does: checkpoints stay, and the same
    run continues from the last one.
    """
    token = _listeners.set((*_listeners.get(), listener))
    try:
        yield
    finally:
        _listeners.reset(token)


def report_step(step: Step) -> None:
    """Call all listeners of the context, the outermost first."""
    for listener in _listeners.get():
        listener(step)
