"""Losses that training runs minimise."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import nn

from bertender.training.examples import TensorBatch

LossParts = Mapping[str, torch.Tensor]


class Objective(Protocol):
    """The loss that a training run minimises."""

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        """Return the named, weighted parts of the loss (scalars); their sum is minimised.

        Anything random must be drawn from the seed and `step`, so that a resumed run repeats it.
        """
        ...


class RepeatedObjective(ABC):
    """An objective of several losses of a batch, each of which depends on the gradient before."""

    @abstractmethod
    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        """Return a loss with the same means, whose counts alone are read."""

    @abstractmethod
    def turns(self, model: nn.Module, batch: TensorBatch, step: int) -> Iterator[LossParts]:
        """Yield the losses, whose sum is minimised; the gradient of each is there after it."""
