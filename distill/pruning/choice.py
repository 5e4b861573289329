"""Choice of the heads and neurons that stay: the most important, of the model or of each layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Literal

from distill.pruning.importance import Scores

if TYPE_CHECKING:
    import torch

__all__ = ["ACROSS", "Across", "chosen", "shares_of_rounds", "the_best"]

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
