"""Times of the parts of a model on this machine, by their numbers of heads and neurons.

Copies of the model with fewer heads and neurons run in turns, in an order shuffled from round to
round, while hooks read the clock between the parts of each layer. So what is timed is the model's
own code, in the order and with the caches that it runs with. The times are PyTorch's on the CPU.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from bertender.core.environment import environment
from bertender.core.findings import LatencyLoad, LatencyTimes, PartTimes
from bertender.core.progress import track
from bertender.measure.latency import quiet
from bertender.measure.load import watched_load
from bertender.measure.samples import Speedup, speedup
from bertender.models.families import encoder_layers, family_of
from bertender.models.pruned import heads_of, neurons_of
from bertender.training.examples import TensorBatch, model_inputs
from distill.pruning.cutting import Remaining, cut

__all__ = ["HERE", "NEURON_STEP", "LatencyTable", "Point", "Stopwatches"]

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the heads and of the neurons, at which a part is timed; 0 stands for one."""
NEURON_STEP = 16
"""Widths that are not a multiple of it, a vector register's floats, take longer for their size:
485 neurons of 384 inputs took as long as 512 for 13 tokens, and an eighth longer than 480."""
ROUNDS = 15
RUNS = 5
"""In a row of one model, of which the median counts, after one that does not."""

_Key = tuple[str, int]
"""A part of a layer and how many heads or neurons it has."""
_Times = Mapping[_Key, float]
"""Milliseconds of a run."""
REST: _Key = ("rest", 0)
TOTAL: _Key = ("total", 0)


class Point(PartTimes):
    """A part of a layer with a number of heads or neurons."""

    @property
    def median_ms(self) -> float:
        """The middle one of the rounds."""
        return float(np.median(self.rounds_ms))


class LatencyTable(LatencyTimes):
    """Times of a layer's parts by their size, and the time of a model that follows."""

    attention: tuple[Point, ...]
    feed_forward: tuple[Point, ...]

    def attention_ms(self, heads: Sequence[int] | range) -> list[float]:
        """Return the times of attention in layers with these numbers of heads."""
        return _between(self.attention, heads)

    def feed_forward_ms(self, neurons: Sequence[int] | range) -> list[float]:
        """Return the times of the feed-forward part in layers with these numbers of neurons."""
        return _between(self.feed_forward, neurons)

    def predicted_ms(self, heads: Sequence[int], neurons: Sequence[int]) -> float:
        """Return the time of a model whose layers have these numbers of heads and neurons."""
        layers = (*self.attention_ms(heads), *self.feed_forward_ms(neurons))
        return float(np.median(self.rest_ms)) + sum(layers)


def _between(points: Sequence[Point], counts: Sequence[int] | range) -> list[float]:
    """Return times on straight lines between the points; more parts never take less time."""
    points = sorted(points, key=lambda point: point.count)
    times_ms = np.maximum.accumulate([point.median_ms for point in points])
    return [float(each) for each in np.interp(counts, [p.count for p in points], times_ms)]


@dataclass(frozen=True)
class Stopwatches:
    """Source of times: this machine, or a test's made-up ones."""

    table: Callable[[PreTrainedModel, LatencyLoad], LatencyTable]
    """(model, load) -> the times of its parts, for up to as many heads and neurons as it has"""
    speedup: Callable[[PreTrainedModel, PreTrainedModel, LatencyLoad], Speedup]
    """(reference, candidate, load) -> how many times as fast the candidate is"""


def _measured_table(model: PreTrainedModel, load: LatencyLoad) -> LatencyTable:
    models = [_copied(model, share) for share in SHARES]
    samples: dict[_Key, list[float]] = defaultdict(list)
    with watched_load(noisy=True) as meter:  # a rough table is better than no pruning
        for _, times_ms in _in_turns(models, load, "time heads and neurons"):
            for key, time_ms in times_ms.items():
                samples[key].append(round(time_ms, 5))
    return LatencyTable(
        load=load,
        cpu_model=environment().cpu_model,
        attention=_points(samples, "attention"),
        feed_forward=_points(samples, "feed_forward"),
        rest_ms=tuple(samples[REST]),
        machine_load=meter.load,
    )


def _points(samples: Mapping[_Key, list[float]], part: str) -> tuple[Point, ...]:
    counts = sorted(count for name, count in samples if name == part)
    return tuple(Point(count=each, rounds_ms=tuple(samples[part, each])) for each in counts)


def _measured_speedup(
    reference: PreTrainedModel, candidate: PreTrainedModel, load: LatencyLoad
) -> Speedup:
    models = [_copied(each, 1.0) for each in (reference, candidate)]
    rounds_ms: list[list[list[float]]] = [[], []]
    for place, times_ms in _in_turns(models, load, "time the pruned model"):
        rounds_ms[place].append([times_ms[TOTAL]])
    return speedup(rounds_ms[0], rounds_ms[1])


HERE = Stopwatches(_measured_table, _measured_speedup)
"""This machine's own times."""


def _copied(model: PreTrainedModel, share: float) -> PreTrainedModel:
    """Return a copy on the CPU with a share of each layer's heads and neurons, one at least."""
    heads, neurons = (
        tuple(tuple(range(_share_of(count, share, step))) for count in counts)
        for counts, step in ((heads_of(model.config), 1), (neurons_of(model.config), NEURON_STEP))
    )
    smaller = cut(model, Remaining(heads, neurons))  # which is built on the CPU
    smaller.eval()
    return smaller


def _share_of(count: int, share: float, step: int) -> int:
    """Return a share of a count, in steps, one at least."""
    return count if share == 1 else max(min(round(count * share / step) * step, count), 1)


def _in_turns(
    models: Sequence[PreTrainedModel], load: LatencyLoad, description: str
) -> Iterator[tuple[int, _Times]]:
    """Time each of the models once a round, in an order of its own; yield its place and times."""
    generator = np.random.default_rng(0)
    turns = [place for _ in range(ROUNDS) for place in generator.permutation(len(models)).tolist()]
    with quiet(load.threads), torch.inference_mode():
        for place in track(turns, description, len(turns)):
            tokens = _tokens(models[place], load)
            _, *runs = (_timed(models[place], tokens) for _ in range(1 + RUNS))
            yield place, {key: float(np.median([run[key] for run in runs])) for key in runs[0]}


def _tokens(model: PreTrainedModel, load: LatencyLoad) -> TensorBatch:
    """Return texts of the load's size; which words they have makes no difference in time."""
    shape = (load.texts, load.tokens)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, shape, generator=generator)
    return model_inputs(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})


def _timed(model: PreTrainedModel, tokens: TensorBatch) -> _Times:
    """Run a model once; return the time of its parts, of layers alike the median."""
    with _ticking(model) as ticks:
        started = time.perf_counter_ns()
        model(**tokens)
        total_ms = (time.perf_counter_ns() - started) / 1e6
    attention_ms, feed_forward_ms = (np.diff(np.reshape(ticks, (-1, 3))).T / 1e6).tolist()
    return {
        **_medians("attention", heads_of(model.config), attention_ms),
        **_medians("feed_forward", neurons_of(model.config), feed_forward_ms),
        TOTAL: total_ms,
        REST: total_ms - sum(attention_ms) - sum(feed_forward_ms),
    }


def _medians(part: str, counts: Sequence[int], times_ms: Sequence[float]) -> _Times:
    """Return the median time of a part of the layers that have as many heads or neurons."""
    by_key: dict[_Key, list[float]] = defaultdict(list)
    for count, time_ms in zip(counts, times_ms, strict=True):
        by_key[part, count].append(time_ms)
    return {key: float(np.median(each)) for key, each in by_key.items()}


@contextmanager
def _ticking(model: PreTrainedModel) -> Iterator[list[int]]:
    """Note the time in ns when a layer starts, when its attention is done, and when it ends."""
    ticks: list[int] = []

    def tick(*call: Any) -> None:
        ticks.append(time.perf_counter_ns())

    attention_end = family_of(model).norms.attention_end
    hooks = []
    for layer in encoder_layers(model):
        hooks.append(layer.register_forward_pre_hook(tick))
        hooks.append(attention_end.listen(layer, tick))
        hooks.append(layer.register_forward_hook(tick))
    try:
        yield ticks
    finally:
        for hook in hooks:
            hook.remove()
