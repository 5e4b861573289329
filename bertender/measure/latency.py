"""Latency of classifiers, measured interleaved: text in, logits out, tokenisation included.

In every round each classifier runs on the same texts, in an order shuffled from round to
round, so a machine that slows down or speeds up does so for all rows. Speedups are formed within
a round, where the machine was the same for both. Raw samples are stored. `measure.fresh` opens the
rows of each engine in a process of its own, and merges several repetitions.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch

from bertender.core.environment import environment
from bertender.core.errors import ConfigError, DataError
from bertender.core.progress import progress_bar
from bertender.measure.latency_records import Latency, LatencyConfig, LatencyReport
from bertender.measure.load import watched_load
from bertender.measure.samples import Rounds, percentiles, speedup_over_processes
from bertender.models.predictor import Classifier
from bertender.text.example import Example

__all__ = [
    "Latency",
    "LatencyConfig",
    "LatencyReport",
    "TakeTurn",
    "Turn",
    "Turns",
    "drawn_texts",
    "measure_latency",
    "merged",
    "quiet",
    "threads_of",
    "time_in_turns",
]


class Turn(NamedTuple):
    """Times of one classifier in one round."""

    single_ms: tuple[float, ...]
    batch_ms: float


TakeTurn = Callable[[int, int], Turn]
"""(row, round) -> its times"""


class Turns:
    """Times some classifiers, which are open in this process, a turn at a time.

    The texts of a round follow from its number, so that rows which are open in other processes
    have the same.

    Args:
        classifiers: opened with `threads=threads_of(config)`.
        examples: texts to draw from.
        config: what is timed.
        process: number of this repetition among several, so that each draws other texts.
    """

    def __init__(
        self,
        classifiers: Sequence[Classifier],
        examples: Sequence[Example],
        config: LatencyConfig,
        process: int,
    ) -> None:
        self.classifiers = classifiers
        self.examples = examples
        self.config = config
        self.process = process
        self._prepared: set[tuple[int, tuple[int, ...]]] = set()

    def take(self, row: int, number: int) -> Turn:
        """Time one classifier for a round, after texts that let the row before leave the caches.

        Worker threads of another runtime may still spin for a while after its last call.
        """
        singles, batch = drawn_texts(self.examples, self.config, self.process, number)
        classifier = self.classifiers[row]
        self._prepare(row, [*([example] for example in singles), batch])
        for example in singles[: self.config.warmup_texts]:
            classifier.logits([example])
        single_ms = tuple(_time_ms(classifier, [example]) for example in singles)
        return Turn(single_ms, _time_ms(classifier, batch))

    def _prepare(self, row: int, batches: Sequence[Sequence[Example]]) -> None:
        """Run a batch of each shape that a classifier has not had: runtimes compile for shapes."""
        for batch in batches:
            encoded = self.classifiers[row].encode(batch)
            for shape in {array.shape for array in encoded.arrays.values()}:
                if (row, shape) not in self._prepared:
                    self.classifiers[row].predictor.logits(encoded)
                    self._prepared.add((row, shape))


def drawn_texts(
    examples: Sequence[Example], config: LatencyConfig, process: int, number: int
) -> tuple[list[Example], list[Example]]:
    """Return the single texts and the batch of a round; they follow from its number.

    Args:
        examples: texts to draw from.
        config: how many of each.
        process: number of the repetition among several.
        number: of the round.
    """
    generator = np.random.default_rng([config.seed, process, number])
    singles = _draw(examples, config.single_texts, generator)
    return singles, _draw(examples, config.batch_size, generator)


def measure_latency(
    classifiers: Sequence[Classifier],
    examples: Sequence[Example],
    config: LatencyConfig,
    *,
    process: int = 0,
) -> LatencyReport:
    """Time classifiers against each other, here; the first is what speedups are relative to.

    The classifiers must be opened with `threads=threads_of(config)`: runtimes fix their
    threads at opening. PyTorch's are set here, and put back.

    Args:
        classifiers: the first is the reference.
        examples: texts to draw from.
        config: what is timed; `processes` is for `measure.fresh`, which calls this in each.
        process: number of this one among several, so that each draws other texts.

    Raises:
        ConfigError: no classifiers.
        DataError: no examples.
        MachineBusyError: other work disturbs the times, and the config does not allow noisy ones.
    """
    if not classifiers:
        raise ConfigError("no classifiers to time: give at least one, the first is the reference.")
    if not examples:
        raise DataError("no texts to time: the split is empty. Give at least one example.")
    names = [classifier.name for classifier in classifiers]
    turns = Turns(classifiers, examples, config, process)
    with quiet(threads_of(config)):
        return time_in_turns(names, turns.take, len(examples), config, process=process)


def time_in_turns(
    names: Sequence[str], take: TakeTurn, texts: int, config: LatencyConfig, *, process: int = 0
) -> LatencyReport:
    """Time rows against each other, wherever they are open.

    Args:
        names: of the rows; the first is the reference.
        take: times one of them for a round.
        texts: number of those that are drawn from.
        config: what is timed.
        process: number of this repetition among several.

    Raises:
        MachineBusyError: other work disturbs the times, and the config does not allow noisy ones.
    """
    with watched_load(config.noisy) as meter:
        turns = _all_turns(len(names), take, config, process)
    batch_texts = min(config.batch_size, texts)
    single_ms = [[[turn.single_ms for turn in of_row]] for of_row in turns]
    batch_ms = [[[turn.batch_ms for turn in of_row]] for of_row in turns]
    rows = tuple(
        _latency(name, single, batch, single_ms[0], batch_texts, config.seed)
        for name, single, batch in zip(names, single_ms, batch_ms, strict=True)
    )
    return LatencyReport(
        config=config,
        threads=threads_of(config),
        batch_texts=batch_texts,
        rows=rows,
        load=meter.load,
    )


def merged(reports: Sequence[LatencyReport], config: LatencyConfig) -> LatencyReport:
    """Return the reports of several processes, of the same rows, as one; its load is missing."""
    one = reports[0]
    by_row = list(zip(*(report.rows for report in reports), strict=True))
    single_ms = [[rounds for row in rows for rounds in row.single_ms] for rows in by_row]
    batch_ms = [[rounds for row in rows for rounds in row.batch_ms] for rows in by_row]
    rows = tuple(
        _latency(row.name, single, batch, single_ms[0], one.batch_texts, config.seed)
        for row, single, batch in zip(one.rows, single_ms, batch_ms, strict=True)
    )
    return LatencyReport(config=config, threads=one.threads, batch_texts=one.batch_texts, rows=rows)


def threads_of(config: LatencyConfig) -> int:
    """Return how many threads a config means, where 0 stands for every usable core."""
    return config.threads or environment().cores


def _all_turns(count: int, take: TakeTurn, config: LatencyConfig, process: int) -> list[list[Turn]]:
    """Let every row take its turn in every round; return rows x timed rounds."""
    turns: list[list[Turn]] = [[] for _ in range(count)]
    generator = np.random.default_rng([config.seed, process])
    rounds = config.warmup_rounds + config.rounds
    with progress_bar("time", rounds * count) as bar:
        for number in range(rounds):
            for row in generator.permutation(count).tolist():
                turns[row].append(take(row, number))
                bar.advance()
    return [of_row[config.warmup_rounds :] for of_row in turns]


def _draw(examples: Sequence[Example], count: int, generator: np.random.Generator) -> list[Example]:
    rows = generator.choice(len(examples), min(count, len(examples)), replace=False)
    return [examples[row] for row in rows.tolist()]


def _time_ms(classifier: Classifier, examples: Sequence[Example]) -> float:
    started = time.perf_counter_ns()
    classifier.logits(examples)
    return round((time.perf_counter_ns() - started) / 1e6, 4)


@contextmanager
def quiet(threads: int) -> Iterator[None]:
    """Set PyTorch's threads and keep the garbage collector out of the timings."""
    threads_before, collected = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(threads)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)
        if collected:
            gc.enable()


def _latency(
    name: str,
    single_ms: Sequence[Rounds],
    batch_ms: Sequence[Sequence[float]],
    first_ms: Sequence[Rounds],
    batch_texts: int,
    seed: int,
) -> Latency:
    """Compute the figures of a row's samples; `first_ms` are the single texts of the first row."""
    batches = np.concatenate(batch_ms)
    return Latency(
        name=name,
        single=percentiles(np.concatenate([texts for rounds in single_ms for texts in rounds])),
        batch=percentiles(batches),
        texts_per_second=1000 * batch_texts * len(batches) / float(batches.sum()),
        speedup=speedup_over_processes(first_ms, single_ms, seed),
        single_ms=single_ms,
        batch_ms=batch_ms,
    )
