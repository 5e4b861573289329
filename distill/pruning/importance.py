"""Importance of heads and neurons, and the choice of those that remain."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

from bertender.core.config import Table
from bertender.core.errors import DataError
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.training.heads import HEADS, Head

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from bertender.training.examples import TensorBatch

# --- from distill.pruning.importance
# IMPORTANCES: what a head or a neuron is worth, by name; higher is more.
#
# `gradient` is how much the loss of an example would change with a gate on the head (Michel et
# al.
# 2019, arXiv 1905.10650, eq. 2): |sum over tokens of context . its gradient|, on average over the
# examples. It is the gradient with respect to a gate of 1 that each example has for itself, so
# that
# padding, which no loss reads, has no part. `fisher` is the
# square of the same gradient, on average over the examples (Kwon et al. 2022, arXiv 2204.09656):
# halved, by how much the loss rises without the head or neuron, to second order, so that heads
# and
# neurons can be held against each other. `taylor` is the first-order change of the loss when the
# weights that read a head or a neuron become 0 (Molchanov et al. 2019, arXiv 1906.10771): |weight
# .
# its gradient|, summed over the weights. `magnitude` is the norm of these weights, which asks for
# no
# text. `random` is the control.
# `Importance.normalised` divides the scores of a layer by their norm, as the published code of
# Michel
# et al. does, so that layers can be compared: gradients shrink with depth. `Importance.by_layer`
# has
# the same end and leaves the heads and neurons of a layer as they are to each other.

Scores: TypeAlias = "tuple[torch.Tensor, ...]"
"""A layer each: (heads,) or (neurons,), at least 0."""


@dataclass(frozen=True)
class Importance:
    """Importance of the heads and neurons of a model."""

    heads: Scores
    neurons: Scores

    @property
    def normalised(self) -> Importance:
        """The same with each layer's scores divided by their norm."""
        from torch.nn import functional

        heads, neurons = (
            tuple(functional.normalize(layer, dim=0) for layer in scores)
            for scores in (self.heads, self.neurons)
        )
        return Importance(heads, neurons)

    @property
    def by_layer(self) -> Importance:
        """The same with a layer's scores, of heads and neurons together, divided by their sum."""
        import torch

        sums = [
            max(float(heads.sum() + neurons.sum()), torch.finfo(heads.dtype).tiny)
            for heads, neurons in zip(self.heads, self.neurons, strict=True)
        ]
        heads, neurons = (
            tuple(layer / total for layer, total in zip(scores, sums, strict=True))
            for scores in (self.heads, self.neurons)
        )
        return Importance(heads, neurons)


@dataclass(frozen=True)
class Scorer:
    """A row of IMPORTANCES."""

    score: Callable[[PreTrainedModel, Iterable[TensorBatch], int, Head], Importance]
    """(classifier, batches with `labels`, seed, its head) -> scores, not normalised"""
    reads_text: bool = True


def _gates(
    model: PreTrainedModel,
    batches: Iterable[TensorBatch],
    seed: int,
    head: Head,
    *,
    size_of: Callable[[torch.Tensor], torch.Tensor],
) -> Importance:
    """Score by the size of the gradient of each example's loss with respect to gates of its own."""
    import torch

    from bertender.models.own_models import heads_of, neurons_of
    from distill.pruning.cutting import gated

    sums: list[torch.Tensor] | None = None
    examples = 0
    for batch in batches:
        size = len(batch["labels"])
        gates = [
            torch.ones(size, count, device=model.device, dtype=model.dtype, requires_grad=True)
            for count in (*heads_of(model.config), *neurons_of(model.config))
        ]
        depth = model.config.num_hidden_layers
        with gated(model, gates[:depth], gates[depth:]):
            loss = head.summed_loss(model, batch)
        gradients = [size_of(each).sum(0) for each in torch.autograd.grad(loss, gates)]
        sums = gradients if sums is None else [a + b for a, b in zip(sums, gradients, strict=True)]
        examples += size
    return _mean(sums, examples, model.config.num_hidden_layers)


def _taylor(
    model: PreTrainedModel, batches: Iterable[TensorBatch], seed: int, head: Head
) -> Importance:
    """Score by the weights that read a head or a neuron, times their gradients."""
    import torch

    weights = _reading_weights(model)
    sums = [torch.zeros_like(weight) for weight in weights]
    examples = 0
    for batch in batches:
        gradients = torch.autograd.grad(head.summed_loss(model, batch), weights)
        sums = [total + each for total, each in zip(sums, gradients, strict=True)]
        examples += len(batch["labels"])
    changes = [(total * weight).detach().abs() for total, weight in zip(sums, weights, strict=True)]
    return _mean(_by_part(model, changes), examples, model.config.num_hidden_layers)


def _magnitude(
    model: PreTrainedModel, batches: Iterable[TensorBatch], seed: int, head: Head
) -> Importance:
    """Score by the norm of the weights that read a head or a neuron."""
    squares = [weight.detach().square() for weight in _reading_weights(model)]
    norms = [each.sqrt() for each in _by_part(model, squares)]
    return _mean(norms, 1, model.config.num_hidden_layers)


def _random(
    model: PreTrainedModel, batches: Iterable[TensorBatch], seed: int, head: Head
) -> Importance:
    """Score by chance: what any other importance must beat."""
    import torch

    from bertender.models.own_models import heads_of, neurons_of

    generator = torch.Generator().manual_seed(seed)
    counts = (*heads_of(model.config), *neurons_of(model.config))
    drawn = [torch.rand(count, generator=generator) for count in counts]
    return _mean(drawn, 1, model.config.num_hidden_layers)


def _square(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.square()


IMPORTANCES = Table(
    "importance",
    {
        "gradient": Scorer(partial(_gates, size_of=abs)),
        "fisher": Scorer(partial(_gates, size_of=_square)),
        "taylor": Scorer(_taylor),
        "magnitude": Scorer(_magnitude, reads_text=False),
        "random": Scorer(_random, reads_text=False),
    },
)


def importance_of(
    model: PreTrainedModel,
    name: str,
    batches: Iterable[TensorBatch],
    seed: int = 0,
    head: Head = HEADS[SINGLE_LABEL.name],
) -> Importance:
    """Return what each head and neuron of a classifier is worth, as it is measured.

    Args:
        model: a row of FAMILIES, put into eval mode.
        name: a row of IMPORTANCES.
        batches: examples with `labels`, where the model is; not all importances read some.
        seed: of `random`.
        head: the classifier's, whose loss with the labels is read.

    Raises:
        UnknownNameError: there is no importance of this name.
        DataError: there is no example, and the importance reads some.
    """
    return IMPORTANCES[name].score(model.eval(), batches, seed, head)


def _reading_weights(model: PreTrainedModel) -> list[torch.Tensor]:
    """Return what reads the heads of each layer, then what reads the neurons of each."""
    from torch import nn

    from bertender.models.families import encoder_layers, family_of

    family = family_of(model)
    return [
        cast(nn.Linear, layer.get_submodule(path)).weight
        for path in (family.projections.output, family.feed_forward.output)
        for layer in encoder_layers(model)
    ]


def _by_part(model: PreTrainedModel, weights: list[torch.Tensor]) -> list[torch.Tensor]:
    """Sum weights (hidden, parts * width) over each head or neuron, (parts,)."""
    from bertender.models.own_models import heads_of, neurons_of

    counts = (*heads_of(model.config), *neurons_of(model.config))
    return [
        weight.sum(0).unflatten(0, (count, -1)).sum(-1)
        for weight, count in zip(weights, counts, strict=True)
    ]


def _mean(sums: list[torch.Tensor] | None, examples: int, depth: int) -> Importance:
    if not sums or not examples:
        raise DataError("there is no example to score heads and neurons on. Give some text.")
    means = [each.detach().float().cpu() / examples for each in sums]
    return Importance(tuple(means[:depth]), tuple(means[depth:]))


# --- from distill.pruning.choice
# Choice of the heads and neurons that stay: the most important, of the model or of each layer.

Across = Literal["model", "layer"]
"""Heads among which the least important ones are looked for."""


def chosen(
    scores: Scores, before: Sequence[int], share: float, across: Across = "model"
) -> tuple[tuple[int, ...], ...]:
    """Return what remains in each layer when a share of its parts before is cut.

    Each layer keeps one at least, its most important.

    Args:
        scores: what those are worth that are left; comparable across layers where `across` is
            "model".
        before: how many each layer had before the first cut.
        share: of these, so much is cut in all after this cut, from 0 to below 1.
        across: the whole model, which leaves uneven layers, or each layer for itself.
    """
    counts = ACROSS[across](scores, before, share)
    return tuple(map(the_best, scores, counts))


def the_best(layer: torch.Tensor, count: int) -> tuple[int, ...]:
    """Return the numbers of the highest scores (heads,) or (neurons,) of a layer, in order."""
    return tuple(sorted(layer.argsort(descending=True, stable=True)[:count].tolist()))


def shares_of_rounds(share: float, rounds: int) -> list[float]:
    """Return the share that is cut after each of several rounds, `share` after the last.

    Every round leaves the same share of what it finds.
    """
    # the last one as it is: what the others round to may be a part more
    return [*(1 - (1 - share) ** (number / rounds) for number in range(1, rounds)), share]


def _in_each(scores: Scores, before: Sequence[int], share: float) -> list[int]:
    """Return how many remain in each layer when the same share of each is cut."""
    return [
        min(len(layer), max(count - round(count * share), 1))
        for layer, count in zip(scores, before, strict=True)
    ]


def _globally(scores: Scores, before: Sequence[int], share: float) -> list[int]:
    """Return how many remain in each layer when the least important of all layers are cut."""
    import torch

    # the best of each layer stays, whatever the others are worth
    every = torch.cat([_with_safe_best(layer) for layer in scores])
    stay = max(sum(before) - round(sum(before) * share), len(scores))
    gone = every.argsort(stable=True)[: max(len(every) - stay, 0)]
    ends = accumulate((len(layer) for layer in scores), initial=0)
    return [high - low - int(((gone >= low) & (gone < high)).sum()) for low, high in pairwise(ends)]


def _with_safe_best(layer: torch.Tensor) -> torch.Tensor:
    import torch

    safe = layer.clone()
    safe[layer.argsort(descending=True, stable=True)[0]] = torch.inf
    return safe


ACROSS: Mapping[Across, Callable[[Scores, Sequence[int], float], list[int]]] = {
    "model": _globally,
    "layer": _in_each,
}
"""(scores, how many each layer had, share to cut) -> how many remain in each layer"""
