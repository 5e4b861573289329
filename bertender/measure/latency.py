"""Latency of classifiers, measured interleaved: text in, logits out, tokenisation included.

In every round each classifier runs on the same texts, in an order shuffled from round to
round, so a machine that slows down or speeds up does so for all rows. Speedups are formed within
a round, where the machine was the same for both. Raw samples are stored. What is timed here is one
process; `measure.fresh` merges several.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

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
    "measure_latency",
    "merged",
    "quiet",
    "threads_of",
]


class _Samples:
    """The clock of one classifier: milliseconds, single texts by round, and batches."""

    def __init__(self) -> None:
        self.single_ms: list[tuple[float, ...]] = []
        self.batch_ms: list[float] = []


def measure_latency(
    classifiers: Sequence[Classifier],
    examples: Sequence[Example],
    config: LatencyConfig,
    *,
    process: int = 0,
) -> LatencyReport:
    """Time classifiers against each other, here; the first is what speedups are relative to.

    The classifiers must be opened with `threads=threads_of(config)`: ONNX Runtime fixes its
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
    threads = threads_of(config)
    with watched_load(config.noisy) as meter, quiet(threads):
        samples = _samples(classifiers, examples, config, process)
    timed = slice(config.warmup_rounds, None)
    batch_texts = min(config.batch_size, len(examples))
    first = [samples[0].single_ms[timed]]
    rows = tuple(
        _latency(
            *(classifier.name, [each.single_ms[timed]], [each.batch_ms[timed]], first),
            *(batch_texts, config.seed),
        )
        for classifier, each in zip(classifiers, samples, strict=True)
    )
    return LatencyReport(
        config=config, threads=threads, batch_texts=batch_texts, rows=rows, load=meter.load
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


def _samples(
    classifiers: Sequence[Classifier],
    examples: Sequence[Example],
    config: LatencyConfig,
    process: int,
) -> list[_Samples]:
    """Let every classifier take its turn in every round, those of the warm-up included."""
    samples = [_Samples() for _ in classifiers]
    generator = np.random.default_rng([config.seed, process])
    rounds = config.warmup_rounds + config.rounds
    with progress_bar("time", rounds * len(classifiers)) as bar:
        for _ in range(rounds):
            singles = _draw(examples, config.single_texts, generator)
            batch = _draw(examples, config.batch_size, generator)
            for row in generator.permutation(len(classifiers)).tolist():
                _take_turn(classifiers[row], singles, batch, config.warmup_texts, samples[row])
                bar.advance()
    return samples


def _draw(examples: Sequence[Example], count: int, generator: np.random.Generator) -> list[Example]:
    rows = generator.choice(len(examples), min(count, len(examples)), replace=False)
    return [examples[row] for row in rows.tolist()]


def _take_turn(
    classifier: Classifier,
    singles: Sequence[Example],
    batch: Sequence[Example],
    warmup_texts: int,
    samples: _Samples,
) -> None:
    """Time one classifier for one round, after texts that let the row before leave the caches.

    Worker threads of another runtime may still spin for a while after its last call.
    """
    for example in singles[:warmup_texts]:
        classifier.logits([example])
    samples.single_ms.append(tuple(_time_ms(classifier, [example]) for example in singles))
    samples.batch_ms.append(_time_ms(classifier, batch))


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
