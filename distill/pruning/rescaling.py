"""Rescaling: what remains after a cut makes up for what went, by least squares and no training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

from bertender.core.errors import DataError
from bertender.core.findings import RescaledPart
from bertender.core.progress import track
from bertender.models.families import encoder_layers, family_of
from bertender.models.family import Family, Place, Sublayer
from bertender.models.own_models import heads_of, neurons_of
from bertender.training.examples import TensorBatch, model_inputs

DAMPING = 1e-2
LARGEST_SCALE = 10.0


@dataclass(frozen=True)
class _Part:
    """A row of PARTS: what a layer adds to its shortcut."""

    name: str
    sublayer: Callable[[Family], Sublayer]
    sum: Callable[[Family], Place]
    """Where it has been added."""
    counts: Callable[[PretrainedConfig], list[int]]

    def places(self, family: Family) -> tuple[Place, Place]:
        """Return what the part's last linear layer reads, and the sum with the shortcut."""
        return Place(self.sublayer(family).output), self.sum(family)


PARTS = (
    _Part(
        "heads",
        lambda family: family.projections,
        lambda family: family.norms.attention_sum,
        heads_of,
    ),
    _Part(
        "neurons",
        lambda family: family.feed_forward,
        lambda family: family.norms.feed_forward_sum,
        neurons_of,
    ),
)
"""The parts of a layer in the order they run."""


class _Reached(Exception):  # noqa: N818  # no error: a run has all that it was started for
    """Ends a run of a model."""


@dataclass
class _Sums:
    """Sums for the normal equations of a part, over the tokens seen so far."""

    products: torch.Tensor
    """Of what heads or neurons give, (width, width)."""
    moments: torch.Tensor
    """Of that with what is missing in the output, (width, hidden)."""
    inputs: torch.Tensor
    """Sum of the outputs of heads or neurons, (width,)."""
    shift: torch.Tensor
    """Sum of the missing output, (hidden,)."""
    tokens: int = 0
    missing: float = 0.0
    """Square of the missing output."""
    whole: float = 0.0
    """Square of the unpruned model's output."""

    @classmethod
    def of(cls, linear: nn.Linear) -> _Sums:
        width, hidden = linear.in_features, linear.out_features
        empty = partial(linear.weight.new_zeros, dtype=torch.float64)
        return cls(empty((width, width)), empty((width, hidden)), empty(width), empty(hidden))

    def add(self, inputs: torch.Tensor, output: torch.Tensor, wanted: torch.Tensor) -> None:
        """Count tokens: what the part reads (tokens, width), its output (tokens, hidden) and the
        unpruned model's."""
        missing = wanted - output
        self.products += inputs.T @ inputs  # in the model's own precision; the sums are in float64
        self.moments += inputs.T @ missing
        self.inputs += inputs.sum(0)
        self.shift += missing.sum(0)
        self.tokens += len(inputs)
        self.missing += float(missing.double().square().sum())
        self.whole += float(wanted.double().square().sum())

    def equations(self, linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return the products, the moments and what is missing.

        Where a bias can hold a constant, they are what is left when the best one is added.
        """
        if linear.bias is None:
            return self.products, self.moments, self.missing
        mean = self.shift / self.tokens
        return (
            self.products - self.inputs.outer(self.inputs) / self.tokens,
            self.moments - self.inputs.outer(mean),
            self.missing - float(self.shift @ mean),
        )


def rescale(
    pruned: PreTrainedModel,
    whole: PreTrainedModel,
    batches: Sequence[TensorBatch],
    damping: float = DAMPING,
    *,
    per_token: bool = False,
) -> list[RescaledPart]:
    """Scale the heads and neurons of a pruned model, in place, and return what it did.

    Args:
        pruned: a row of PRUNABLE, put into eval mode.
        whole: the model before the cut, with as many layers, on the same device.
        batches: texts with an `attention_mask`, where the models are.
        damping: how much scales are held at 1, over what the mean head or neuron of a part writes.
        per_token: whether the head reads all tokens of the last layer, and not the first alone.

    Raises:
        DataError: there is no text.
    """
    if not batches:
        raise DataError("there is no text to rescale heads and neurons on. Give some.")
    pruned.eval(), whole.eval()
    depth = len(encoder_layers(pruned))
    places = [(layer, part) for layer in range(depth) for part in PARTS]
    return [
        _rescale_part(pruned, whole, layer, part, batches, damping, per_token)
        for layer, part in track(places, "rescale", len(places))
    ]


@torch.no_grad()
def fold(linear: nn.Linear, scales: torch.Tensor, constant: torch.Tensor | None = None) -> None:
    """Scale what a linear layer reads, (heads,) or (neurons,), in its weights.

    A constant (hidden,) is added to what it writes, where it has a bias.
    """
    width = linear.in_features // len(scales)
    linear.weight.mul_(scales.to(linear.weight).repeat_interleave(width))
    if constant is not None and linear.bias is not None:
        linear.bias.add_(constant.to(linear.bias))


@torch.no_grad()
def _rescale_part(
    pruned: PreTrainedModel,
    whole: PreTrainedModel,
    layer: int,
    part: _Part,
    batches: Iterable[TensorBatch],
    damping: float,
    per_token: bool,
) -> RescaledPart:
    places = part.places(family_of(pruned))
    linear = cast(nn.Linear, encoder_layers(pruned)[layer].get_submodule(places[0].path))
    sums = _Sums.of(linear)
    for tokens in _tokens(pruned, whole, layer, places, batches, per_token):
        sums.add(*tokens)
    changes, error = _solved(sums, linear, part.counts(pruned.config)[layer], damping)
    width = linear.in_features // len(changes)
    written = linear.weight.double() @ (changes.repeat_interleave(width) * sums.inputs)
    fold(linear, 1 + changes, (sums.shift - written) / sums.tokens)
    square = max(sums.whole, torch.finfo(torch.float64).tiny)
    errors = {"error_before": sums.missing / square, "error_after": error / square}
    return RescaledPart(layer=layer, part=part.name, **errors)


def _tokens(
    pruned: PreTrainedModel,
    whole: PreTrainedModel,
    layer: int,
    places: tuple[Place, Place],
    batches: Iterable[TensorBatch],
    per_token: bool,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Yield what `_Sums.add` takes of each batch: the tokens that the next layer reads."""
    per_token = per_token or family_of(pruned).pools_all_tokens(pruned.config)
    first_alone = layer == len(encoder_layers(pruned)) - 1 and not per_token
    for batch in batches:
        read = batch["attention_mask"].bool().clone()  # (batch, seq)
        if first_alone:
            read[:, 1:] = False
        inputs, output = _states_at(pruned, layer, places, batch)
        (wanted,) = _states_at(whole, layer, places[1:], batch)
        yield inputs[read], output[read], wanted[read]


def _states_at(
    model: PreTrainedModel, layer: int, places: Sequence[Place], batch: TensorBatch
) -> list[torch.Tensor]:
    """Run a model up to some places of a layer; return the states there, in their order."""
    reached: list[torch.Tensor] = []

    def keep(states: torch.Tensor) -> None:
        reached.append(states)
        if len(reached) == len(places):
            raise _Reached

    module = encoder_layers(model)[layer]
    hooks = [place.listen(module, keep) for place in places]
    try:
        with suppress(_Reached):
            model(**model_inputs(model, batch))
    finally:
        for hook in hooks:
            hook.remove()
    return reached


def _solved(
    sums: _Sums, linear: nn.Linear, count: int, damping: float
) -> tuple[torch.Tensor, float]:
    """Return by how much the scales of heads or neurons differ from 1, and the error then.

    What two channels write together, over all tokens, is the product of what they give times the
    product of their columns of the weight; a head is the sum of its channels.
    """
    products, moments, missing = sums.equations(linear)
    columns = linear.weight.double()  # (hidden, width)
    together = products * (columns.T @ columns)  # (width, width)
    gram = together.unflatten(0, (count, -1)).unflatten(-1, (count, -1)).sum((1, 3))
    wanted = (moments * columns.T).sum(1).unflatten(0, (count, -1)).sum(1)  # (count,)
    held = damping * gram.diagonal().mean() + torch.finfo(gram.dtype).tiny
    changes = torch.linalg.solve(gram + held * torch.eye(count).to(gram), wanted)
    if not (1 + changes).abs().le(LARGEST_SCALE).all():  # nor is a scale that is not a number
        return torch.zeros_like(changes), missing
    return changes, missing + float(changes @ gram @ changes - 2 * changes @ wanted)
