"""How long classifiers take, measured interleaved: text in, logits out, tokenisation included.

In every round each classifier answers the same texts, in an order shuffled from round to
round, so a machine that slows down or speeds up does so for all rows. Speedups are formed within
a round, where the machine was the same for both. Raw samples are kept.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from pydantic import Field

from bertender.core.config import Config, Record
from bertender.core.environment import environment
from bertender.core.errors import ConfigError, DataError
from bertender.core.predictor import Classifier
from bertender.core.progress import progress_bar
from bertender.core.text import Example
from bertender.measure.samples import Percentiles, Speedup, percentiles, speedup

__all__ = [
    "Latency",
    "LatencyConfig",
    "LatencyReport",
    "measure_latency",
    "quiet",
    "threads_of",
]


class LatencyConfig(Config):
    """How much is timed, and with how many threads."""

    single_texts: int = Field(50, ge=1, description="texts timed one by one in a round")
    batch_size: int = Field(32, ge=1, description="texts of the timed batch, of mixed lengths")
    rounds: int = Field(10, ge=2, description="timed rounds; a speedup's interval is over rounds")
    warmup_rounds: int = Field(1, ge=0, description="whole rounds before the first timed one")
    warmup_texts: int = Field(5, ge=0, description="untimed texts at the start of every turn")
    threads: int = Field(0, ge=0, description="of PyTorch and ONNX Runtime alike; 0: every core")
    seed: int = Field(0, ge=0, description="which texts are drawn")


class Latency(Record):
    """One classifier's times. `samples` are raw; everything else is computed from them."""

    name: str
    single: Percentiles = Field(description="one text at its natural length, tokenised and run")
    batch: Percentiles = Field(description="one batch, padded to its longest, tokenised and run")
    texts_per_second: float = Field(description="texts of all timed batches over their time")
    speedup: Speedup = Field(description="of single texts, by the medians of each round")
    single_ms: tuple[tuple[float, ...], ...] = Field(description="raw: rounds x texts")
    batch_ms: tuple[float, ...] = Field(description="raw: one batch a round")


class LatencyReport(Record):
    """Interleaved measurements, and how they were made."""

    config: LatencyConfig
    threads: int = Field(description="what `config.threads` came to")
    batch_texts: int = Field(description="texts in a batch; fewer than asked in a small split")
    rows: tuple[Latency, ...]


class _Samples:
    """The clock of one classifier: milliseconds, single texts by round, and batches."""

    def __init__(self) -> None:
        self.single_ms: list[tuple[float, ...]] = []
        self.batch_ms: list[float] = []


def measure_latency(
    classifiers: Sequence[Classifier], examples: Sequence[Example], config: LatencyConfig
) -> LatencyReport:
    """Time classifiers against each other; the first is what speedups are relative to.

    The classifiers must be opened with `threads=threads_of(config)`: ONNX Runtime fixes its
    threads at opening. PyTorch's are set here, and put back.

    Raises:
        ConfigError: no classifiers.
        DataError: no examples.
    """
    if not classifiers:
        raise ConfigError("no classifiers to time: give at least one, the first is the reference.")
    if not examples:
        raise DataError("no texts to time: the split is empty. Give at least one example.")
    threads = threads_of(config)
    samples = [_Samples() for _ in classifiers]
    generator = np.random.default_rng(config.seed)
    rounds = config.warmup_rounds + config.rounds
    with quiet(threads), progress_bar("time", rounds * len(classifiers)) as bar:
        for _ in range(rounds):
            singles = _draw(examples, config.single_texts, generator)
            batch = _draw(examples, config.batch_size, generator)
            for row in generator.permutation(len(classifiers)).tolist():
                _take_turn(classifiers[row], singles, batch, config.warmup_texts, samples[row])
                bar.advance()
    batch_texts = min(config.batch_size, len(examples))
    rows = _summarise(classifiers, samples, config, batch_texts)
    return LatencyReport(config=config, threads=threads, batch_texts=batch_texts, rows=rows)


def threads_of(config: LatencyConfig) -> int:
    """Return how many threads a config means, where 0 stands for every usable core."""
    return config.threads or environment().cores


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

    Worker threads of another runtime may still spin for a while after its last answer.
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


def _summarise(
    classifiers: Sequence[Classifier],
    samples: Sequence[_Samples],
    config: LatencyConfig,
    batch_texts: int,
) -> tuple[Latency, ...]:
    first = samples[0].single_ms[config.warmup_rounds :]
    rows = []
    for classifier, sample in zip(classifiers, samples, strict=True):
        single_ms = sample.single_ms[config.warmup_rounds :]
        batch_ms = sample.batch_ms[config.warmup_rounds :]
        rows.append(
            Latency(
                name=classifier.name,
                single=percentiles(np.concatenate(single_ms)),
                batch=percentiles(np.array(batch_ms)),
                texts_per_second=1000 * batch_texts * len(batch_ms) / sum(batch_ms),
                speedup=speedup(first, single_ms, config.seed),
                single_ms=tuple(single_ms),
                batch_ms=tuple(batch_ms),
            )
        )
    return tuple(rows)
