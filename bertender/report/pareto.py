"""The Pareto front: what is worth a look where several things count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

__all__ = ["pareto_front"]

Key = TypeVar("Key")


def pareto_front(costs: Mapping[Key, Sequence[float]]) -> list[Key]:
    """Return the keys that no other dominates, in order.

    One dominates another where it costs no more in anything, and less in something.

    Args:
        costs: of each key the same things; a gain, as a score, is a cost below 0.
    """
    return [
        key
        for key, own in costs.items()
        if not any(_dominates(other, own) for other in costs.values())
    ]


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    return tuple(one) != tuple(other) and all(a <= b for a, b in zip(one, other, strict=True))
