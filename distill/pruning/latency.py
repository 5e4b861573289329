"""Pruning to a target latency: times of a model's parts, and the search for the best fit."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.comparison.latency import quiet
from bertender.comparison.records import speedup
from bertender.core.build_once import directory_once
from bertender.core.errors import ConfigError
from bertender.core.findings import LatencyFindings, LatencyLoad, LatencyTimes, PartTimes
from bertender.core.machine import Speedup, environment, watched_load
from bertender.core.progress import track
from bertender.models.classifier import model_inputs
from bertender.models.families import encoder_layers, family_of
from bertender.models.own_models import heads_of, neurons_of
from bertender.tasks.task import Task
from bertender.training.examples import token_dataset
from distill.pruning.config import PruneConfig
from distill.pruning.cutting import Remaining, cut
from distill.pruning.importance import Importance, highest_scores, shares_of_rounds

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the heads and neurons at which a part is timed; 0 stands for one head or neuron."""
NEURON_STEP = 16
"""Floats in a vector register. Other widths are slow for their size: for 13 tokens, 485 neurons of
384 inputs took as long as 512, and an eighth longer than 480."""
ROUNDS = 15
RUNS = 5
"""Runs of one model in a row, after one warm-up run; the median counts."""
TABLE_NAME = "table.json"
BISECTIONS = 60
LEAST_MS = 1e-12
"""Stands for a time of 0 in a division."""

_Key = tuple[str, int]
"""A part of a layer, and its number of heads or neurons."""
_Times = Mapping[_Key, float]
"""Milliseconds of each part in a run."""
REST: _Key = ("rest", 0)
TOTAL: _Key = ("total", 0)


@dataclass(frozen=True)
class Target:
    """The target latency of a model, from its latency before pruning."""

    factor: float
    """Wanted speedup."""
    table: LatencyTable
    before: PreTrainedModel

    @property
    def before_ms(self) -> float:
        """Predicted latency of the unpruned model."""
        return self._predicted_ms(self.before)

    def limits_ms(self, rounds: int) -> list[float]:
        """Return the latency limit after each round; each round saves the same share."""
        shares = shares_of_rounds(1 - 1 / self.factor, rounds)
        return [self.before_ms * (1 - share) for share in shares]

    def reached(self, model: PreTrainedModel, stopwatches: Stopwatches) -> LatencyFindings:
        """Return the predicted and measured speedup of a model, with the table of part times."""
        return LatencyFindings(
            target=self.factor,
            predicted=self.before_ms / self._predicted_ms(model),
            measured=stopwatches.speedup(self.before, model, self.table.load),
            table=self.table,
        )

    def _predicted_ms(self, model: PreTrainedModel) -> float:
        return self.table.predicted_ms(heads_of(model.config), neurons_of(model.config))


def find_target(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    config: PruneConfig,
    stopwatches: Stopwatches,
    work: Path,
) -> Target:
    """Time a model's parts once, for the target latency of a config.

    Args:
        model: the unpruned model.
        tokenizer: of the pruned model.
        task: its training texts set the timed length, where the config does not.
        config: settings with a `target_latency`.
        stopwatches: source of the times.
        work: directory of the stored table, which a resumed run reads again.

    Raises:
        ConfigError: pruning cannot make the model that fast.
    """
    assert config.target_latency is not None
    tokens = config.latency_tokens
    if tokens is None:
        lengths = token_dataset(task.train, tokenizer, task.problem_type).lengths
        tokens = max(round(sum(lengths) / len(lengths)), 1)
    load = LatencyLoad(texts=config.latency_texts, tokens=tokens, threads=environment().cores)

    def write_table(directory: Path) -> None:
        table = stopwatches.table(model, load)
        (directory / TABLE_NAME).write_text(table.model_dump_json(), encoding="utf-8")

    directory = directory_once(work / "latency", load.model_dump(mode="json"), write_table)
    table = LatencyTable.model_validate_json((directory / TABLE_NAME).read_bytes())
    target = Target(config.target_latency, table, model)
    layers = model.config.num_hidden_layers - config.layers
    best = target.before_ms / fastest_ms(table, layers)
    if target.factor > best:
        raise ConfigError(
            f"target_latency={target.factor:g}x: with one head and one neuron in each of its "
            f"{layers} layers the model is {best:.2f}x as fast as before, for {load.texts} texts "
            f"of {load.tokens} tokens on this machine. Ask for less, or drop layers as well "
            f"(layers=1 or more)."
        )
    return target


class Point(PartTimes):
    """A part of a layer with a number of heads or neurons."""

    @property
    def median_ms(self) -> float:
        """Median over the rounds."""
        return float(np.median(self.rounds_ms))


class LatencyTable(LatencyTimes):
    """Times of a layer's parts by size, which predict the latency of a model."""

    attention: tuple[Point, ...]
    feed_forward: tuple[Point, ...]

    def attention_ms(self, heads: Sequence[int] | range) -> list[float]:
        """Return the times of attention in layers with these numbers of heads."""
        return _interpolated(self.attention, heads)

    def feed_forward_ms(self, neurons: Sequence[int] | range) -> list[float]:
        """Return the times of the feed-forward part in layers with these numbers of neurons."""
        return _interpolated(self.feed_forward, neurons)

    def predicted_ms(self, heads: Sequence[int], neurons: Sequence[int]) -> float:
        """Return the time of a model whose layers have these numbers of heads and neurons."""
        layers = (*self.attention_ms(heads), *self.feed_forward_ms(neurons))
        return float(np.median(self.rest_ms)) + sum(layers)


def _interpolated(points: Sequence[Point], counts: Sequence[int] | range) -> list[float]:
    """Interpolate times linearly between the points; time never falls with the count."""
    points = sorted(points, key=lambda point: point.count)
    times_ms = np.maximum.accumulate([point.median_ms for point in points])
    return [float(each) for each in np.interp(counts, [p.count for p in points], times_ms)]


class Stopwatches:
    """Times of PyTorch models on this machine's CPU.

    Models take turns, in an order shuffled every round, while hooks read the clock between the
    parts of each layer. The times are therefore of the model's own code, with its real order and
    caches.
    """

    def table(self, model: PreTrainedModel, load: LatencyLoad) -> LatencyTable:
        """Return the times of a model's parts, for up to as many heads and neurons as it has.

        Copies of the model with fewer heads and neurons are timed.
        """
        models = [_cpu_copy(model, share) for share in SHARES]
        samples: dict[_Key, list[float]] = defaultdict(list)
        with watched_load(noisy=True) as meter:  # a rough table is better than no pruning
            for _, times_ms in _time_in_turns(models, load, "time heads and neurons"):
                for key, time_ms in times_ms.items():
                    samples[key].append(round(time_ms, 5))

        def points(part: str) -> tuple[Point, ...]:
            counts = sorted(count for name, count in samples if name == part)
            return tuple(Point(count=each, rounds_ms=tuple(samples[part, each])) for each in counts)

        return LatencyTable(
            load=load,
            cpu_model=environment().cpu_model,
            attention=points("attention"),
            feed_forward=points("feed_forward"),
            rest_ms=tuple(samples[REST]),
            machine_load=meter.load,
        )

    def speedup(
        self, reference: PreTrainedModel, candidate: PreTrainedModel, load: LatencyLoad
    ) -> Speedup:
        """Return the speedup of the candidate over the reference."""
        models = [_cpu_copy(each, 1.0) for each in (reference, candidate)]
        rounds_ms: list[list[list[float]]] = [[], []]
        for place, times_ms in _time_in_turns(models, load, "time the pruned model"):
            rounds_ms[place].append([times_ms[TOTAL]])
        return speedup(rounds_ms[0], rounds_ms[1])


HERE = Stopwatches()


def _cpu_copy(model: PreTrainedModel, share: float) -> PreTrainedModel:
    """Return a copy on the CPU with a share of each layer's heads and neurons, at least one."""

    def numbers(count: int, step: int) -> tuple[int, ...]:
        if share < 1:
            count = max(min(round(count * share / step) * step, count), 1)
        return tuple(range(count))

    heads = tuple(numbers(count, 1) for count in heads_of(model.config))
    neurons = tuple(numbers(count, NEURON_STEP) for count in neurons_of(model.config))
    smaller = cut(model, Remaining(heads, neurons))  # `cut` builds on the CPU
    smaller.eval()
    return smaller


def _time_in_turns(
    models: Sequence[PreTrainedModel], load: LatencyLoad, description: str
) -> Iterator[tuple[int, _Times]]:
    """Time each model once per round, in shuffled order; yield the model's index and its times."""
    shuffle = np.random.default_rng(0)
    turns = [place for _ in range(ROUNDS) for place in shuffle.permutation(len(models)).tolist()]
    with quiet(load.threads), torch.inference_mode():
        for place in track(turns, description, len(turns)):
            model, generator = models[place], torch.Generator().manual_seed(0)
            # the time does not depend on the words
            shape = (load.texts, load.tokens)
            ids = torch.randint(model.config.vocab_size, shape, generator=generator)
            tokens = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            _, *runs = (_time_parts(model, model_inputs(model, tokens)) for _ in range(1 + RUNS))
            yield place, {key: float(np.median([run[key] for run in runs])) for key in runs[0]}


def _time_parts(model: PreTrainedModel, tokens: Mapping[str, torch.Tensor]) -> _Times:
    """Run a model once; return the time of its parts, the median over layers of equal size."""
    with _clock_reads(model) as ticks:
        started = time.perf_counter_ns()
        model(**tokens)
        total_ms = (time.perf_counter_ns() - started) / 1e6
    attention_ms, feed_forward_ms = (np.diff(np.reshape(ticks, (-1, 3))).T / 1e6).tolist()
    by_key: dict[_Key, list[float]] = defaultdict(list)
    for count, time_ms in zip(heads_of(model.config), attention_ms, strict=True):
        by_key["attention", count].append(time_ms)
    for count, time_ms in zip(neurons_of(model.config), feed_forward_ms, strict=True):
        by_key["feed_forward", count].append(time_ms)
    return {
        **{key: float(np.median(each)) for key, each in by_key.items()},
        TOTAL: total_ms,
        REST: total_ms - sum(attention_ms) - sum(feed_forward_ms),
    }


@contextmanager
def _clock_reads(model: PreTrainedModel) -> Iterator[list[int]]:
    """Collect the time in ns at the start, the end of attention, and the end of each layer."""
    ticks: list[int] = []

    def tick(*call: Any) -> None:
        ticks.append(time.perf_counter_ns())

    attention_end = family_of(model).norms.attention_end
    with ExitStack() as hooks:
        for layer in encoder_layers(model):
            hooks.enter_context(layer.register_forward_pre_hook(tick))
            hooks.enter_context(attention_end.listen(layer, tick))
            hooks.enter_context(layer.register_forward_hook(tick))
        yield ticks


@dataclass(frozen=True)
class _Part:
    """The heads or the neurons of a layer: arrays (choices,), in ascending number kept."""

    counts: npt.NDArray[np.int64]
    """How many are kept."""
    lost: npt.NDArray[np.float64]
    """Total importance of the others."""
    time_ms: npt.NDArray[np.float64]

    def choice_at(self, price: float) -> int:
        """Return the index of the best choice at a price: importance per millisecond."""
        return int(np.argmin(self.lost + price * self.time_ms))

    def next_ms(self, place: int) -> float:
        """Return the additional time of the next larger choice."""
        return float(self.time_ms[place + 1] - self.time_ms[place])

    def gain_per_ms(self, place: int) -> float:
        """Return the additional importance of the next larger choice per additional ms."""
        gain = float(self.lost[place] - self.lost[place + 1])
        return gain / max(self.next_ms(place), LEAST_MS)


def fastest_ms(table: LatencyTable, layers: int) -> float:
    """Return the time of a model with one head and one neuron in each of its layers."""
    return table.predicted_ms([1] * layers, [1] * layers)


def fitting(
    importance: Importance, table: LatencyTable, limit_ms: float, step: int = NEURON_STEP
) -> Remaining:
    """Return the heads and neurons of most total importance that fit into a latency limit.

    Each layer keeps at least one head and one neuron, whatever the limit (see `fastest_ms`).
    Mask search of Kwon et al. 2022 (arXiv 2204.09656): minimise the summed importance of pruned
    parts under a limit on the latency that a table predicts. The paper tries every number of heads
    and spends the remaining time on neurons, which assumes that time is proportional to both. Here
    every part of a layer (its heads, its neurons) has its own curve from the table. Bisection finds
    a price of a millisecond in importance, a Lagrange multiplier: at a price, each part keeps the
    number of heads or neurons with the least lost importance plus priced time, and a high enough
    price makes the model fit. The remaining time then goes to the heads and neurons with the most
    importance per millisecond that still fit. Neurons remain in steps of 16, since other widths are
    slow for their size.
    Importance must mean the same for heads and neurons. Squared gradients do: half of them is the
    increase of the loss (the diagonal of the Fisher information). The paper compares them across
    layers unscaled; the pruner divides by each layer's sum (`Importance.by_layer`). Unscaled, a
    6-layer teacher of SST-2 at twice its speed kept 7 to 79 neurons in its upper three layers and
    scored 0.71 without training; scaled, 0.78.

    Args:
        importance: importance that is comparable between heads and neurons of all layers.
        table: times of parts, up to the model's number of heads and neurons.
        limit_ms: latency limit of the whole model.
        step: a layer keeps a multiple of `step` neurons, or one, or all.
    """
    heads = [_part(layer, table.attention_ms, 1) for layer in importance.heads]
    neurons = [_part(layer, table.feed_forward_ms, step) for layer in importance.neurons]
    parts = [*heads, *neurons]
    left_ms = limit_ms - float(np.median(table.rest_ms))
    places = _fill_spare_time(parts, _cheapest_fit(parts, left_ms), left_ms)
    counts = [int(part.counts[place]) for part, place in zip(parts, places, strict=True)]
    return Remaining(
        tuple(map(highest_scores, importance.heads, counts[: len(heads)])),
        tuple(map(highest_scores, importance.neurons, counts[len(heads) :])),
    )


def _part(scores: torch.Tensor, curve: Callable[[Sequence[int]], list[float]], step: int) -> _Part:
    counts = sorted({1, *range(step, len(scores), step), len(scores)})
    ascending = np.sort(scores.double().cpu().numpy())
    # summed from the least important on, so that keeping all loses exactly 0
    worst = np.concatenate([[0.0], np.cumsum(ascending)])
    lost = worst[len(scores) - np.asarray(counts)]
    return _Part(np.asarray(counts), lost, np.asarray(curve(counts)))


def _cheapest_fit(parts: Sequence[_Part], limit_ms: float) -> list[int]:
    """Return each part's choice at the lowest price at which the model fits, if it can."""
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


def _fill_spare_time(parts: Sequence[_Part], places: Sequence[int], limit_ms: float) -> list[int]:
    """Keep more heads and neurons while they fit, by importance per millisecond."""
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
