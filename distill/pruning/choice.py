"""Which heads and neurons stay: the most important ones, of the whole model or of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from bertender.core.errors import ConfigError
from distill.pruning.cutting import Kept
from distill.pruning.importance import Importance, Scores

__all__ = ["Across", "chosen", "rounds_of"]

Across = Literal["model", "layer"]
"""Among which heads the least important ones are sought."""


def chosen(importance: Importance, heads: float, neurons: float, across: Across = "model") -> Kept:
    """Return what stays when a share of the heads and of the neurons goes.

    Each layer keeps one of each at least, its most important.

    Args:
        importance: what they are worth; comparable across layers where `across` is "model".
        heads: share to be cut, from 0 to below 1.
        neurons: share to be cut, from 0 to below 1.
        across: the whole model, which leaves uneven layers, or each layer for itself.

    Raises:
        ConfigError: a share is not in its range.
    """
    return Kept(
        _kept(importance.heads, _share("heads", heads), across),
        _kept(importance.neurons, _share("neurons", neurons), across),
    )


def rounds_of(share: float, rounds: int) -> list[float]:
    """Return what share of the rest each of several rounds cuts, so that together they cut `share`.

    Every round leaves the same share of what it finds.
    """
    return [1 - (1 - share) ** (1 / rounds)] * rounds


def _share(name: str, share: float) -> float:
    if not 0 <= share < 1:
        raise ConfigError(
            f"{name}={share}: a share from 0 to below 1 can be cut, since a layer without any "
            "would say nothing. To drop layers as a whole, give layers."
        )
    return share


def _kept(scores: Scores, share: float, across: Across) -> tuple[tuple[int, ...], ...]:
    keep: Mapping[Across, list[int]] = {
        "layer": [max(len(layer) - round(len(layer) * share), 1) for layer in scores],
        "model": _globally(scores, share),
    }
    return tuple(
        tuple(sorted(layer.argsort(descending=True, stable=True)[:count].tolist()))
        for layer, count in zip(scores, keep[across], strict=True)
    )


def _globally(scores: Scores, share: float) -> list[int]:
    """Return how many each layer keeps when the least important ones of all layers go."""
    # the best of each layer stays, whatever the others are worth
    safe = [_with_safe_best(layer) for layer in scores]
    every = torch.cat(safe)
    going = min(round(len(every) * share), len(every) - len(scores))
    gone = every.argsort(stable=True)[:going]
    bounds = torch.tensor([0, *_ends(scores)])
    return [
        len(layer) - int(((gone >= low) & (gone < high)).sum())
        for layer, low, high in zip(scores, bounds[:-1], bounds[1:], strict=True)
    ]


def _with_safe_best(layer: torch.Tensor) -> torch.Tensor:
    safe = layer.clone()
    safe[layer.argsort(descending=True, stable=True)[0]] = torch.inf
    return safe


def _ends(scores: Sequence[torch.Tensor]) -> list[int]:
    return torch.tensor([len(layer) for layer in scores]).cumsum(0).tolist()
