"""Which heads and neurons go for a model to be so fast: those that cost the most time for least.

Mask search of Kwon et al. 2022 (arXiv 2204.09656): the summed importance of what goes is least
under a limit on the time that a latency table predicts. They try every number of heads and spend
what is left on neurons, which takes a time that grows in proportion to either. Here every part of
a layer (its heads, its neurons) has a curve of its own from the table, and a price of a
millisecond in importance, a Lagrange multiplier, is sought by bisection: at a price, each part by
itself keeps the number of heads or neurons for which lost importance plus priced time is least,
and the whole fits as soon as the price is high enough. What time is left then buys the heads and
neurons with the most importance a millisecond that still fit.
Importance must mean the same for heads and neurons, as squared gradients do: halved, they are what
the loss rises by (the diagonal of the Fisher information). The paper compares them across layers as
they are; the pruner gives each layer's share of its sum (`Importance.by_layer`). As they are, a
6-layer teacher of SST-2 at twice its speed had 7 to 79 neurons left in its upper three layers and
scored 0.71, untrained, and by shares 0.78.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from distill.pruning.choice import the_best
from distill.pruning.cutting import Kept
from distill.pruning.importance import Importance
from distill.pruning.latency import LatencyTable

__all__ = ["fastest_ms", "fitting"]

BISECTIONS = 60
LEAST_MS = 1e-12
"""Stands for no time at all, of which something cannot be divided."""

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Part:
    """The heads or the neurons of a layer; arrays (count,) whose entry k is about k + 1 kept."""

    lost: FloatArray
    """Importance of all others when the best are kept."""
    time_ms: FloatArray

    def count_at(self, price: float) -> int:
        """Return how many are kept when a millisecond is worth so much importance."""
        return int(np.argmin(self.lost + price * self.time_ms)) + 1

    def next_ms(self, count: int) -> float:
        """Return what one more takes."""
        return float(self.time_ms[count] - self.time_ms[count - 1])

    def gain_per_ms(self, count: int) -> float:
        """Return the importance of one more over its time."""
        return float(self.lost[count - 1] - self.lost[count]) / max(self.next_ms(count), LEAST_MS)


def fastest_ms(table: LatencyTable, layers: int) -> float:
    """Return what a model of so many layers takes with one head and one neuron in each."""
    return table.predicted_ms([1] * layers, [1] * layers)


def fitting(importance: Importance, table: LatencyTable, limit_ms: float) -> Kept:
    """Return the heads and neurons that are worth most together of those that fit into a time.

    Each layer keeps one head and one neuron at least, whatever the limit (see `fastest_ms`).

    Args:
        importance: such that heads and neurons of all layers can be compared.
        table: the times of parts of up to so many heads and neurons.
        limit_ms: for the whole model.
    """
    parts = [*_parts(importance, table)]
    left_ms = limit_ms - float(np.median(table.rest_ms))
    counts = _filled(parts, _priced(parts, left_ms), left_ms)
    depth = len(importance.heads)
    return Kept(
        tuple(map(the_best, importance.heads, counts[:depth])),
        tuple(map(the_best, importance.neurons, counts[depth:])),
    )


def _parts(importance: Importance, table: LatencyTable) -> Iterator[_Part]:
    """Yield the heads of each layer, then the neurons of each."""
    for scores, curve in (
        (importance.heads, table.attention_ms),
        (importance.neurons, table.feed_forward_ms),
    ):
        for layer in scores:
            ordered = np.sort(layer.double().numpy())[::-1]
            lost = np.append(np.cumsum(ordered[::-1])[::-1][1:], 0.0)  # no rounding leaves 0
            yield _Part(lost, np.asarray(curve(range(1, len(layer) + 1))))


def _priced(parts: Sequence[_Part], limit_ms: float) -> list[int]:
    """Return how many each part keeps at the lowest price at which all fit, as far as they can."""
    limit_ms = max(limit_ms, _spent_ms(parts, [1] * len(parts)))
    low, high = 0.0, 1.0
    while _spent_ms(parts, _counts(parts, high)) > limit_ms:
        low, high = high, high * 4
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fits = _spent_ms(parts, _counts(parts, middle)) <= limit_ms
        low, high = (low, middle) if fits else (middle, high)
    return _counts(parts, high)


def _counts(parts: Sequence[_Part], price: float) -> list[int]:
    return [part.count_at(price) for part in parts]


def _spent_ms(parts: Sequence[_Part], counts: Sequence[int]) -> float:
    return sum(float(part.time_ms[n - 1]) for part, n in zip(parts, counts, strict=True))


def _filled(parts: Sequence[_Part], counts: Sequence[int], limit_ms: float) -> list[int]:
    """Keep more one by one, the most important a millisecond first, while one fits."""
    counts, left_ms = list(counts), limit_ms - _spent_ms(parts, counts)
    while True:
        more = [
            (part.gain_per_ms(counts[place]), place)
            for place, part in enumerate(parts)
            if counts[place] < len(part.lost) and part.next_ms(counts[place]) <= left_ms
        ]
        if not more:
            return counts
        _, place = max(more)
        left_ms -= parts[place].next_ms(counts[place])
        counts[place] += 1
