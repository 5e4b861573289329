"""Importance of heads and neurons, and the choice of the remaining ones.

`SCORERS` has the importances by name; higher is more important. `gradient` is the sensitivity of an
example's loss to a gate on the head (Michel et al. 2019, arXiv 1905.10650, eq. 2): |sum over tokens
of context . its gradient|, averaged over the examples. Each example has its own gate of 1, so that
padding, which no loss reads, has no effect. `fisher` is the square of the same gradient, averaged
over the examples (Kwon et al. 2022, arXiv 2204.09656): half of it is the increase of the loss
without the head or neuron, to second order, so that heads and neurons are comparable. `taylor` is
the first-order change of the loss when the weights that read a head or a neuron become 0 (Molchanov
et al. 2019, arXiv 1906.10771): |weight . its gradient|, summed over the weights. `magnitude` is the
norm of these weights and needs no texts. `random` is the control.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.core.config import Table
from bertender.core.errors import DataError
from bertender.models.families import encoder_layers, family_of
from bertender.models.own_models import heads_of, neurons_of
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.training.examples import TensorBatch
from bertender.training.heads import HEADS
from bertender.training.heads.head import ROWS, Head
from distill.pruning.config import Across

Scores = tuple[torch.Tensor, ...]
"""One tensor per layer: (heads,) or (neurons,), at least 0."""


@dataclass(frozen=True)
class Importance:
    """Importance of the heads and neurons of a model."""

    heads: Scores
    neurons: Scores

    @property
    def normalised(self) -> Importance:
        """Importance with each layer's scores divided by their norm.

        Gradients shrink with depth. The division makes layers comparable, as in the published code
        of Michel et al.
        """
        return Importance(
            tuple(map(_normalised, self.heads)), tuple(map(_normalised, self.neurons))
        )

    @property
    def by_layer(self) -> Importance:
        """Importance with each layer's scores divided by the sum over its heads and neurons.

        Layers become comparable, and the ratio of heads to neurons in a layer stays the same.
        """
        sums = [
            max(float(heads.sum() + neurons.sum()), torch.finfo(heads.dtype).tiny)
            for heads, neurons in zip(self.heads, self.neurons, strict=True)
        ]
        return Importance(
            tuple(layer / total for layer, total in zip(self.heads, sums, strict=True)),
            tuple(layer / total for layer, total in zip(self.neurons, sums, strict=True)),
        )


def _normalised(layer: torch.Tensor) -> torch.Tensor:
    """Return scores divided by their norm, in float64: squared gradients may be below 1e-12."""
    least = torch.finfo(torch.float64).tiny
    return functional.normalize(layer.double(), dim=0, eps=least).to(layer.dtype)


def importance_of(
    model: PreTrainedModel,
    name: str,
    batches: Iterable[TensorBatch],
    seed: int = 0,
    head: Head = HEADS[SINGLE_LABEL.name],
) -> Importance:
    """Return the importance of each head and neuron of a classifier, not normalised.

    Args:
        model: a classifier of an architecture in FAMILIES, put into eval mode.
        name: a name in IMPORTANCES.
        batches: examples with `labels`, on the model's device; not all importances read them.
        seed: seed of `random`.
        head: the classifier's head, for its loss on the labels.

    Raises:
        UnknownNameError: there is no importance of this name.
        DataError: the importance needs examples, and there are none.
    """
    model.eval()
    sums, examples = SCORERS[name](model, batches, seed, head)
    if not examples:
        raise DataError("there is no example to score heads and neurons on. Give some text.")
    means = [each.detach().float().cpu() / examples for each in sums]
    depth = model.config.num_hidden_layers
    return Importance(tuple(means[:depth]), tuple(means[depth:]))


_Sums = tuple[list[torch.Tensor], int]
"""Scores of each layer's heads, then of each layer's neurons, summed, and the example count."""


def _examples_of(batch: TensorBatch) -> int:
    """Return the number of examples in a batch; an example may have several token rows."""
    return len(batch[ROWS] if ROWS in batch else batch["labels"])


def _by_gates(
    model: PreTrainedModel,
    batches: Iterable[TensorBatch],
    seed: int,
    head: Head,
    *,
    size_of: Callable[[torch.Tensor], torch.Tensor],
) -> _Sums:
    """Score by the gradient of each example's loss with respect to the example's own gates."""
    sums: list[torch.Tensor] = []
    examples = 0
    for batch in batches:
        size = _examples_of(batch)
        gates = [
            torch.ones(size, count, device=model.device, dtype=model.dtype, requires_grad=True)
            for count in _counts(model)
        ]
        depth = model.config.num_hidden_layers
        own = [each.repeat_interleave(batch[ROWS], 0) for each in gates] if ROWS in batch else gates
        with gated(model, own[:depth], own[depth:]):
            loss = head.summed_loss(model, batch)
        gradients = [size_of(each).sum(0) for each in torch.autograd.grad(loss, gates)]
        sums = [a + b for a, b in zip(sums, gradients, strict=True)] if sums else gradients
        examples += size
    return sums, examples


def _by_taylor(
    model: PreTrainedModel, batches: Iterable[TensorBatch], seed: int, head: Head
) -> _Sums:
    """Score by the weights that read a head or a neuron, times their gradients."""
    weights = _reading_weights(model)
    sums = [torch.zeros_like(weight) for weight in weights]
    examples = 0
    for batch in batches:
        gradients = torch.autograd.grad(head.summed_loss(model, batch), weights)
        sums = [total + each for total, each in zip(sums, gradients, strict=True)]
        examples += _examples_of(batch)
    changes = [(total * weight).detach().abs() for total, weight in zip(sums, weights, strict=True)]
    return _by_part(model, changes), examples


def _by_magnitude(
    model: PreTrainedModel, batches: Iterable[TensorBatch], seed: int, head: Head
) -> _Sums:
    """Score by the norm of the weights that read a head or a neuron."""
    squares = [weight.detach().square() for weight in _reading_weights(model)]
    return [each.sqrt() for each in _by_part(model, squares)], 1


def _at_random(
    model: PreTrainedModel, batches: Iterable[TensorBatch], seed: int, head: Head
) -> _Sums:
    """Score at random, as a control."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(count, generator=generator) for count in _counts(model)], 1


SCORERS: Table[Callable[[PreTrainedModel, Iterable[TensorBatch], int, Head], _Sums]] = Table(
    "importance",
    {
        "gradient": partial(_by_gates, size_of=torch.abs),
        "fisher": partial(_by_gates, size_of=torch.square),
        "taylor": _by_taylor,
        "magnitude": _by_magnitude,
        "random": _at_random,
    },
)
"""Scorers by importance: (classifier, batches with `labels`, seed, its head) -> scores."""


def _counts(model: PreTrainedModel) -> tuple[int, ...]:
    """Return the number of heads of each layer, then the number of neurons of each."""
    return (*heads_of(model.config), *neurons_of(model.config))


def _reading_weights(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return the weights that read each layer's heads, then those that read its neurons."""
    family = family_of(model)
    return [
        cast(nn.Linear, layer.get_submodule(path)).weight
        for path in (family.projections.output, family.feed_forward.output)
        for layer in encoder_layers(model)
    ]


def _by_part(model: PreTrainedModel, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sum weights (hidden, parts * width) over each head or neuron, (parts,)."""
    return [
        weight.sum(0).unflatten(0, (count, -1)).sum(-1)
        for weight, count in zip(weights, _counts(model), strict=True)
    ]


@contextmanager
def gated(
    model: PreTrainedModel,
    heads: Sequence[torch.Tensor] = (),
    neurons: Sequence[torch.Tensor] = (),
) -> Iterator[None]:
    """Multiply the outputs of heads and neurons by gates, inside the block.

    A gate of 1 changes nothing; 0 removes the head or neuron. Hooks gate heads at the input of the
    output projection, and neurons at the input of the second feed-forward layer, so that no model
    code is copied and every architecture in FAMILIES has gates. (transformers dropped its own head
    masks.)

    Args:
        model: a model of an architecture in FAMILIES.
        heads: a tensor per layer, (heads,) or one per example, (batch, heads).
        neurons: a tensor per layer, (neurons,) or (batch, neurons).
    """

    def times(
        module: nn.Module, inputs: tuple[torch.Tensor, ...], gate: torch.Tensor
    ) -> tuple[Any, ...]:
        """Multiply states (batch, seq, gates * width)."""
        states, *others = inputs
        by_gate = states.unflatten(-1, (gate.shape[-1], -1))  # (batch, seq, gates, width)
        each = gate[..., None] if gate.ndim == 1 else gate[:, None, :, None]
        return ((by_gate * each).flatten(-2), *others)

    family = family_of(model)
    paths = family.projections.output, family.feed_forward.output
    with ExitStack() as hooks:
        for path, gates in zip(paths, (heads, neurons), strict=True):
            for layer, gate in zip(encoder_layers(model), gates, strict=False):
                module = layer.get_submodule(path)
                hooks.enter_context(module.register_forward_pre_hook(partial(times, gate=gate)))
        yield


def chosen(
    scores: Scores, before: Sequence[int], share: float, across: Across = "model"
) -> tuple[tuple[int, ...], ...]:
    """Return the numbers of the remaining heads (or neurons) of each layer after a cut.

    Each layer keeps at least its most important one.

    Args:
        scores: scores of the present heads; comparable across layers where `across` is "model".
        before: number of heads in each layer before the first cut.
        share: total share of `before` that is gone after this cut, from 0 to below 1.
        across: compare in the whole model, which leaves uneven layers, or within each layer.
    """
    if across == "layer":
        counts = [
            min(len(layer), max(count - round(count * share), 1))
            for layer, count in zip(scores, before, strict=True)
        ]
        return tuple(map(highest_scores, scores, counts))
    safe = []
    for layer in scores:
        layer = layer.clone()
        # the best head or neuron of each layer always remains
        layer[layer.argsort(descending=True, stable=True)[0]] = torch.inf
        safe.append(layer)
    every = torch.cat(safe)
    remaining = max(sum(before) - round(sum(before) * share), len(scores))
    gone = every.argsort(stable=True)[: max(len(every) - remaining, 0)]
    ends = accumulate((len(layer) for layer in scores), initial=0)
    counts = [
        high - low - int(((gone >= low) & (gone < high)).sum()) for low, high in pairwise(ends)
    ]
    return tuple(map(highest_scores, scores, counts))


def highest_scores(layer: torch.Tensor, count: int) -> tuple[int, ...]:
    """Return the numbers of a layer's highest scores (heads,) or (neurons,), in ascending order."""
    return tuple(sorted(layer.argsort(descending=True, stable=True)[:count].tolist()))


def shares_of_rounds(share: float, rounds: int) -> list[float]:
    """Return the total share that is cut after each round, `share` after the last.

    Every round keeps the same fraction.
    """
    # the last share is exact: a rounding error could cut one head more
    return [*(1 - (1 - share) ** (number / rounds) for number in range(1, rounds)), share]
