"""Rescaling: remaining heads and neurons make up for pruned ones, by least squares, no training.

Mask tuning of Kwon et al. 2022, "A Fast Post-Training Pruning Framework for Transformers" (arXiv
2204.09656). Part by part, from the first layer's attention to the last layer's feed-forward part,
each remaining head or neuron gets a scale s, and the part a constant vector c, which minimise over
the real tokens
    |r - c - sum of (s - 1) * output of the head or neuron|^2 + damping * |s - 1|^2.
The residual r is the unpruned model's part output plus shortcut (the input of the layer norm),
minus the pruned model's; both models read the same text from their own embeddings on. The scales
are folded into the weights that read the head or neuron, and the constant into their bias, so that
the model keeps its shape. In the last layer only the first token counts, since the classifier
reads only that one, as in the published code; if the classifier reads the mean, all tokens count.
Departures: the constant is ours, since pruned parts do not have a mean output of 0; linear layers
without a bias get none. The normal equations are solved directly, in float64, where the published
code runs LSMR (there are no more unknowns than neurons in a layer, and one pass over the texts
suffices). The damping is a share of their mean diagonal, so that it means the same for any number
of texts. Where scales leave [-10, 10], a part gets only its constant and tuning continues with the
next part; the published code stops there.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from bertender.core.errors import DataError
from bertender.core.findings import RescaledPart
from bertender.core.progress import track
from bertender.models.classifier import model_inputs
from bertender.models.families import encoder_layers, family_of, pools_all_tokens
from bertender.models.family import Place
from bertender.models.own_models import heads_of, neurons_of
from bertender.training.examples import TensorBatch

DAMPING = 1e-2
LARGEST_SCALE = 10.0


class _StopForward(Exception):  # noqa: N818  # not an error
    """Ends a forward pass once the wanted states are read."""


@dataclass(frozen=True)
class _Part:
    """The heads or the neurons of all layers, whose output each layer adds to its shortcut."""

    name: str
    linear: str
    """Path in a layer to the linear layer that reads the heads or neurons."""
    sum: Place
    """Where the output of `linear` has been added to the shortcut."""
    counts: list[int]
    """Number of heads or neurons in each layer."""


def rescale(
    pruned: PreTrainedModel,
    whole: PreTrainedModel,
    batches: Sequence[TensorBatch],
    damping: float = DAMPING,
    *,
    per_token: bool = False,
) -> list[RescaledPart]:
    """Scale the heads and neurons of a pruned model in place; return the errors of each part.

    Args:
        pruned: a model of an architecture in PRUNABLE, put into eval mode.
        whole: the model before the cut, with as many layers, on the same device.
        batches: texts with an `attention_mask`, on the models' device.
        damping: penalty on scales other than 1, relative to the mean square output.
        per_token: whether the head reads all tokens of the last layer, not only the first.

    Raises:
        DataError: there are no texts.
    """
    if not batches:
        raise DataError("there is no text to rescale heads and neurons on. Give some.")
    pruned.eval(), whole.eval()
    family = family_of(pruned)
    parts = (
        _Part(
            "heads", family.projections.output, family.norms.attention_sum, heads_of(pruned.config)
        ),
        _Part(
            "neurons",
            family.feed_forward.output,
            family.norms.feed_forward_sum,
            neurons_of(pruned.config),
        ),
    )
    # in the order of the forward pass
    places = [(layer, part) for layer in range(len(encoder_layers(pruned))) for part in parts]
    per_token = per_token or pools_all_tokens(pruned.config)
    return [
        _rescale_part(pruned, whole, layer, part, batches, damping, per_token)
        for layer, part in track(places, "rescale", len(places))
    ]


@torch.no_grad()
def fold(linear: nn.Linear, scales: torch.Tensor, constant: torch.Tensor | None = None) -> None:
    """Fold scales of a linear layer's inputs, (heads,) or (neurons,), into its weights.

    A constant (hidden,) is added to its bias, if any.
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
    batches: Sequence[TensorBatch],
    damping: float,
    per_token: bool,
) -> RescaledPart:
    linear = cast(nn.Linear, encoder_layers(pruned)[layer].get_submodule(part.linear))
    first_alone = layer == len(encoder_layers(pruned)) - 1 and not per_token
    sums = _Sums.of(linear)
    for batch in batches:
        # the tokens that the next layer, or the head, reads: (batch, seq)
        read = batch["attention_mask"].bool().clone()
        if first_alone:
            read[:, 1:] = False
        inputs, output = _states_at(pruned, layer, (Place(part.linear), part.sum), batch)
        (wanted,) = _states_at(whole, layer, (part.sum,), batch)
        sums.add(inputs[read], output[read], wanted[read])
    changes, error = _solve(sums, linear, part.counts[layer], damping)
    width = linear.in_features // len(changes)
    written = linear.weight.double() @ (changes.repeat_interleave(width) * sums.inputs)
    fold(linear, 1 + changes, (sums.shift - written) / sums.tokens)
    square = max(sums.whole, torch.finfo(torch.float64).tiny)
    errors = {"error_before": sums.missing / square, "error_after": error / square}
    return RescaledPart(layer=layer, part=part.name, **errors)


@dataclass
class _Sums:
    """Sums for the normal equations of a part, over the tokens seen so far."""

    products: torch.Tensor
    """Products of the outputs of heads or neurons, (width, width)."""
    moments: torch.Tensor
    """Products of these outputs and the missing part of the output, (width, hidden)."""
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
        """Add tokens: inputs (tokens, width), output and the unpruned model's (tokens, hidden)."""
        missing = wanted - output
        self.products += inputs.T @ inputs  # in the model's precision; the sums are in float64
        self.moments += inputs.T @ missing
        self.inputs += inputs.sum(0)
        self.shift += missing.sum(0)
        self.tokens += len(inputs)
        self.missing += float(missing.double().square().sum())
        self.whole += float(wanted.double().square().sum())

    def equations(self, linear: nn.Linear) -> tuple[torch.Tensor, torch.Tensor, float]:
        """Return the products, the moments and the squared missing output.

        With a bias, they are what remains after the best constant is added.
        """
        if linear.bias is None:
            return self.products, self.moments, self.missing
        mean = self.shift / self.tokens
        return (
            self.products - self.inputs.outer(self.inputs) / self.tokens,
            self.moments - self.inputs.outer(mean),
            self.missing - float(self.shift @ mean),
        )


def _states_at(
    model: PreTrainedModel, layer: int, places: Sequence[Place], batch: TensorBatch
) -> list[torch.Tensor]:
    """Run a model up to places in a layer; return the states there, in the order of the places."""
    reached: list[torch.Tensor] = []

    def keep(states: torch.Tensor) -> None:
        reached.append(states)
        if len(reached) == len(places):
            raise _StopForward

    module = encoder_layers(model)[layer]
    with suppress(_StopForward), ExitStack() as hooks:
        for place in places:
            hooks.enter_context(place.listen(module, keep))
        model(**model_inputs(model, batch))
    return reached


def _solve(
    sums: _Sums, linear: nn.Linear, count: int, damping: float
) -> tuple[torch.Tensor, float]:
    """Return the scales of heads or neurons minus 1, and the squared error that remains.

    The inner product of two channels' outputs over all tokens is the product of their inputs times
    the product of their weight columns; a head is the sum of its channels.
    """
    products, moments, missing = sums.equations(linear)
    columns = linear.weight.double()  # (hidden, width)
    together = products * (columns.T @ columns)  # (width, width)
    gram = together.unflatten(0, (count, -1)).unflatten(-1, (count, -1)).sum((1, 3))
    wanted = (moments * columns.T).sum(1).unflatten(0, (count, -1)).sum(1)  # (count,)
    held = damping * gram.diagonal().mean() + torch.finfo(gram.dtype).tiny
    changes = torch.linalg.solve(gram + held * torch.eye(count).to(gram), wanted)
    if not (1 + changes).abs().le(LARGEST_SCALE).all():  # also true of NaN
        return torch.zeros_like(changes), missing
    return changes, missing + float(changes @ gram @ changes - 2 * changes @ wanted)
