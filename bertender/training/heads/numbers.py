"""The head for numbers, learned in units of their spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from bertender.core.errors import ConfigError
from bertender.metrics.metric import is_labelled
from bertender.problems.regression import REGRESSION
from bertender.training.heads.head import (
    SPREAD,
    Columns,
    divisor,
    mean_of_rows,
    precise,
    row_weights,
)
from bertender.training.heads.texts import TextHead

if TYPE_CHECKING:
    import torch

    from bertender.training.heads.head import Divergence, TensorBatch


SPREADS_OF_LOGITS = 0.1, 10.0
"""Smallest and largest standard deviation of numbers that learn well at the rate of logits."""
MOST_SPREADS = 25
"""Largest mean of such numbers, in spreads; at this size, the 8 bits of bfloat16 resolve a tenth of
a spread."""


class NumberHead(TextHead):
    """A number. Losses are in standard deviations of the target numbers, so that prices have the
    same weight as similarities."""

    problem = REGRESSION.name
    softens = False

    def columns(self, targets: Sequence[float]) -> Columns:
        units = {name: [unit] * len(targets) for name, unit in self.spreads(targets).items()}
        return {"labels": [float(target) for target in targets], **units}

    def known_targets(self, targets: Sequence[float], logits: Callable[[], Any]) -> Sequence[float]:
        if any(map(is_labelled, targets)):
            return targets
        return tuple(logits().flatten().tolist())

    def spreads(self, targets: Sequence[float]) -> Mapping[str, float]:
        return {SPREAD: spread_of(targets)}

    def begin(
        self,
        model: torch.nn.Module,
        targets: Sequence[float],
        source: torch.nn.Module | None = None,
    ) -> None:
        begin_numbers(model, {0: targets}, 1, source)

    def hard_loss(self, logits: torch.Tensor, batch: TensorBatch) -> torch.Tensor:
        """Return the mean squared error."""
        labels = batch["labels"][:, None]
        known = labels.isfinite()
        losses = self._distances(logits, labels.where(known, 0.0), batch)
        return (losses * known).sum() / divisor(known.sum().float())

    def labelled(self, logits: torch.Tensor, batch: TensorBatch) -> int:
        return int(batch["labels"].isfinite().sum())

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
        """Return the mean squared distance: a number is not a distribution, so nothing is softened.

        The softmax over one number is 1, so any divergence would be 0.
        """
        distances = self._distances(student, teacher.detach(), batch)
        return mean_of_rows(distances, *row_weights(batch, distances))

    def _distances(
        self, numbers: torch.Tensor, wanted: torch.Tensor, batch: TensorBatch
    ) -> torch.Tensor:
        moved = (precise(numbers) - precise(wanted)) / batch[SPREAD][:, None]
        return moved.square()


def begin_numbers(
    model: torch.nn.Module,
    targets: Mapping[int, Sequence[float]],
    outputs: int,
    source: torch.nn.Module | None,
) -> None:
    """Initialise a new head so that its numbers vary about the targets' mean by their spread.

    A trained head from the model's source, recognised by a bias other than 0, keeps its weights.

    Args:
        model: classifier.
        targets: target numbers, by index of the output.
        outputs: number of the model's outputs.
        source: model that the weights are from; None for itself.
    """
    import torch

    layer, known = output_layer(model, outputs), output_layer(source or model, outputs)
    if layer is None or layer.bias is None:
        return
    if known is not None and torch.equal(known.weight, layer.weight) and bool(known.bias.any()):
        return
    for row, own in targets.items():
        if numbers := [number for number in own if is_labelled(number)]:
            with torch.no_grad():
                layer.weight[row] *= spread_of(numbers)
                layer.bias[row] = float(np.mean(numbers))


def check_size(numbers: Sequence[float], name: str) -> None:
    """Raise ConfigError for numbers that cannot be learned next to logits.

    A number is a row of the layer that also computes the logits of other heads. The rows have one
    learning rate, and all compute in bfloat16 or none.

    Args:
        numbers: target numbers.
        name: name of their head.
    """
    if not numbers:
        raise ConfigError(
            f"head {name!r}: no text has a number of it, so that their size is not known. Give "
            "some that do."
        )
    mean, spread = float(np.mean(numbers)), spread_of(numbers)
    least, most = SPREADS_OF_LOGITS
    if not least <= spread <= most or abs(mean) > MOST_SPREADS * spread:
        raise ConfigError(
            f"head {name!r}: its numbers have mean {mean:.4g} and standard deviation {spread:.4g}. "
            f"Beside other heads the deviation must be {least:g} to {most:g}, and the mean at most "
            f"{MOST_SPREADS} of it. Shift and scale the column, or train a model of it alone."
        )


def spread_of(numbers: Sequence[float]) -> float:
    """Return the standard deviation of the known numbers, or 1 if they are all equal."""
    known = [number for number in numbers if is_labelled(number)]
    return (float(np.std(known)) if known else 0.0) or 1.0


def output_layer(model: torch.nn.Module, outputs: int) -> torch.nn.Linear | None:
    """Return the layer that computes a classifier's logits: the last with this many outputs, of the
    head where the model says which part is its encoder."""
    import torch

    encoder = getattr(model, "base_model", model)
    inner = set() if encoder is model else {*encoder.modules()}
    layers = [
        each
        for each in model.modules()
        if isinstance(each, torch.nn.Linear) and each.out_features == outputs
    ]
    return next((each for each in reversed(layers) if each not in inner), None)


@contextmanager
def exact_numbers(model: torch.nn.Module) -> Iterator[None]:
    """Let the layer that outputs numbers compute in float32 when others compute in bfloat16.

    bfloat16 has 8 bits: numbers near 2000 have steps of 8, however little they differ.
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
        if outer is not None:  # was exact before
            vars(layer)["forward"] = outer
