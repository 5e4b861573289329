"""The head of numbers, which learn in the unit of their own spread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from bertender.metrics.targets import is_labelled
from bertender.problems.regression import REGRESSION
from bertender.training.heads.head import SPREAD, Columns
from bertender.training.heads.losses import precise
from bertender.training.heads.texts import TextHead

if TYPE_CHECKING:
    import torch

    from bertender.training.heads.head import Divergence, TensorBatch


class NumberHead(TextHead):
    """A number. Losses are in standard deviations of the numbers to learn, so that prices weigh as
    much as similarities do."""

    problem = REGRESSION.name
    softens = False

    def columns(self, targets: Sequence[float]) -> Columns:
        spread = spread_of(targets)
        return {
            "labels": [float(target) for target in targets],
            SPREAD: [spread] * len(targets),
        }

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[float],
        source: torch.nn.Module | None = None,
    ) -> None:
        """Let a new head give numbers about the mean, as far from it as those to learn.

        A head that the model has from its source and that has learned, whose bias is not 0 any
        more, keeps its weights.
        """
        import torch

        layer, known = output_layer(model, 1), output_layer(source or model, 1)
        numbers = [number for number in targets if is_labelled(number)]
        if layer is None or layer.bias is None or not numbers:
            return
        if known is not None and torch.equal(known.weight, layer.weight) and bool(known.bias.any()):
            return
        with torch.no_grad():
            layer.weight *= spread_of(numbers)
            layer.bias.fill_(float(np.mean(numbers)))

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the mean squared error."""
        labels = batch["labels"][:, None]
        known = labels.isfinite()
        losses = self._distances(logits, labels.where(known, 0.0), batch)
        return (losses * known).sum() / known.sum().clamp(min=1)

    def averaged(self, logits: Sequence[torch.Tensor]) -> torch.Tensor:
        return sum(logits[1:], start=logits[0]) / len(logits)

    def predicted(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the numbers in standard deviations, (batch, 1)."""
        return precise(logits) / batch[SPREAD][:, None]

    def soft_loss(
        self,
        student: torch.Tensor,
        teacher: torch.Tensor,
        batch: TensorBatch,
        temperature: float,
        divergence: Divergence | None = None,
    ) -> torch.Tensor:
        """Return the mean squared distance: a number is no distribution, and nothing is softened.

        A softmax over one number is 1, and a divergence of it always 0.
        """
        return self._distances(student, teacher.detach(), batch).mean()

    def _distances(
        self, numbers: torch.Tensor, wanted: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        moved = (precise(numbers) - precise(wanted)) / batch[SPREAD][:, None]
        return moved.square()


def spread_of(numbers: Sequence[float]) -> float:
    """Return the standard deviation of those that are known, or 1 where they do not differ."""
    known = [number for number in numbers if is_labelled(number)]
    return (float(np.std(known)) if known else 0.0) or 1.0


def output_layer(model: torch.nn.Module, outputs: int) -> torch.nn.Linear | None:
    """Return the layer that gives a classifier's logits: the last with so many outputs."""
    import torch

    layers = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    return next((each for each in reversed(layers) if each.out_features == outputs), None)


@contextmanager
def exact_numbers(model: torch.nn.Module) -> Iterator[None]:
    """Let the layer that gives numbers compute in float32, where others compute in bfloat16.

    bfloat16 has 8 bits: of numbers about 2000, steps of 8, however little they differ.
    """
    import torch

    layer = output_layer(model, 1)
    if layer is None:
        yield
        return
    forward, outer = layer.forward, vars(layer).get("forward")

    def exact(states: torch.Tensor) -> torch.Tensor:
        with torch.autocast(states.device.type, enabled=False):
            return forward(states.to(layer.weight.dtype))

    vars(layer)["forward"] = exact
    try:
        yield
    finally:
        del vars(layer)["forward"]
        if outer is not None:  # it was exact before
            vars(layer)["forward"] = outer
