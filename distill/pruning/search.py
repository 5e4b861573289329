"""Search for the heads and neurons to cut for a speed: most time for the least importance.

Mask search of Kwon et al. 2022 (arXiv 2204.09656): the summed importance of what goes is least
under a limit on the time that a latency table predicts. They try every number of heads and spend
the rest on neurons, which takes a time that grows in proportion to either. Here every part of
a layer (its heads, its neurons) has a curve of its own from the table, and a price of a
millisecond in importance, a Lagrange multiplier, is sought by bisection: at a price, each part by
itself keeps the number of heads or neurons for which lost importance plus priced time is least,
and the whole fits as soon as the price is high enough. The remaining time then buys the heads and
neurons with the most importance a millisecond that still fit. Neurons stay in steps of 16, since
other widths are slower than their size.
Importance must mean the same for heads and neurons, as squared gradients do: halved, they are what
the loss rises by (the diagonal of the Fisher information). The paper compares them across layers as
they are; the pruner gives each layer's share of its sum (`Importance.by_layer`). As they are, a
6-layer teacher of SST-2 at twice its speed had 7 to 79 neurons left in its upper three layers and
scored 0.71, untrained, and by shares 0.78.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from distill.pruning.choice import the_best
from distill.pruning.cutting import Remaining
from distill.pruning.importance import Importance
from distill.pruning.latency import NEURON_STEP, LatencyTable

__all__ = ["fastest_ms", "fitting"]

BISECTIONS = 60
LEAST_MS = 1e-12
"""Stands for a time of 0, by which nothing can be divided."""

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class _Part:
    """The heads or the neurons of a layer: arrays (choices,), from the fewest that may stay."""

    counts: IntArray
    """How many may stay."""
    lost: FloatArray
    """Importance of all others when the best stay."""
    time_ms: FloatArray

    def choice_at(self, price: float) -> int:
        """Return the place of the choice when a millisecond is worth so much importance."""
        return int(np.argmin(self.lost + price * self.time_ms))

    def next_ms(self, place: int) -> float:
        """Return what the next choice takes more."""
        return float(self.time_ms[place + 1] - self.time_ms[place])

    def gain_per_ms(self, place: int) -> float:
        """Return the importance that the next choice keeps over the time that it takes."""
        gain = float(self.lost[place] - self.lost[place + 1])
        return gain / max(self.next_ms(place), LEAST_MS)


def fastest_ms(table: LatencyTable, layers: int) -> float:
    """Return the time of a model with one head and one neuron in each of its layers."""
    return table.predicted_ms([1] * layers, [1] * layers)


def fitting(
    importance: Importance, table: LatencyTable, limit_ms: float, step: int = NEURON_STEP
) -> Remaining:
    """Return the heads and neurons that are worth most together of those that fit into a time.

    Each layer keeps one head and one neuron at least, whatever the limit (see `fastest_ms`).

    Args:
        importance: such that heads and neurons of all layers can be compared.
        table: the times of parts of up to so many heads and neurons.
        limit_ms: for the whole model.
        step: a layer keeps a multiple of so many neurons, or one, or all.
    """
    heads = [_part(layer, table.attention_ms, 1) for layer in importance.heads]
    neurons = [_part(layer, table.feed_forward_ms, step) for layer in importance.neurons]
    parts = [*heads, *neurons]
    left_ms = limit_ms - float(np.median(table.rest_ms))
    places = _filled(parts, _priced(parts, left_ms), left_ms)
    counts = [int(part.counts[place]) for part, place in zip(parts, places, strict=True)]
    return Remaining(
        tuple(map(the_best, importance.heads, counts[: len(heads)])),
        tuple(map(the_best, importance.neurons, counts[len(heads) :])),
    )


def _part(scores: torch.Tensor, curve: Callable[[Sequence[int]], list[float]], step: int) -> _Part:
    counts = sorted({1, *range(step, len(scores), step), len(scores)})
    ascending = np.sort(scores.double().cpu().numpy())
    # of the worst so many; sums from the least on, so that nothing lost is exactly 0
    worst = np.concatenate([[0.0], np.cumsum(ascending)])
    lost = worst[len(scores) - np.asarray(counts)]
    return _Part(np.asarray(counts), lost, np.asarray(curve(counts)))


def _priced(parts: Sequence[_Part], limit_ms: float) -> list[int]:
    """Return what each part chooses at the lowest price at which all fit, as far as they can."""
    limit_ms = max(limit_ms, _spent_ms(parts, [0] * len(parts)))
    low, high = 0.0, 1.0
    while _spent_ms(parts, _choices(parts, high)) > limit_ms:
        low, high = high, high * 4
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        fits = _spent_ms(parts, _choices(parts, middle)) <= limit_ms
        low, high = (low, middle) if fits else (middle, high)
    return _choices(parts, high)


def _choices(parts: Sequence[_Part], price: float) -> list[int]:
    return [part.choice_at(price) for part in parts]


def _spent_ms(parts: Sequence[_Part], places: Sequence[int]) -> float:
    return sum(float(part.time_ms[place]) for part, place in zip(parts, places, strict=True))


def _filled(parts: Sequence[_Part], places: Sequence[int], limit_ms: float) -> list[int]:
    """Keep more step by step, the most important a millisecond first, while a step fits."""
    places, left_ms = list(places), limit_ms - _spent_ms(parts, places)
    while True:
        more = [
            (part.gain_per_ms(places[number]), number)
            for number, part in enumerate(parts)
            if places[number] + 1 < len(part.counts) and part.next_ms(places[number]) <= left_ms
        ]
        if not more:
            return places
        _, number = max(more)
        left_ms -= parts[number].next_ms(places[number])
        places[number] += 1
