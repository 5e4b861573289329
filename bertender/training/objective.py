"""The objective of a training run, and its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from bertender.training.examples import TensorBatch

__all__ = ["LossParts", "Objective", "TrainingReport"]

LossParts = Mapping[str, torch.Tensor]


class Objective(Protocol):
    """The loss that a training run minimises."""

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        """Return the named, weighted parts of the loss (scalars); their sum is minimised.

        Anything random must be drawn from the seed and `step`, so that a resumed run repeats it.
        """
        ...


@dataclass
class TrainingReport:
    """Record of a run: the loss as it fell, and the scores at the end of each epoch.

    Samples and seconds are those since the run began or was resumed, scoring left out; two runs
    that differ in them alone are equal.
    """

    steps: int
    losses: list[dict[str, float]] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    samples: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)
