"""Latency of classifiers, timed in turns in fresh processes: text in, logits out."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field

from bertender.comparison.records import (
    Latency,
    LatencyConfig,
    LatencyReport,
    Rounds,
    percentiles,
    speedup_over_processes,
)
from bertender.comparison.runtimes import runtime_of
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.core.machine import environment
from bertender.core.machine_load import busiest, check_load, check_load_now, watched_load
from bertender.core.progress import progress_bar, track
from bertender.models.classifier import Classifier, open_classifier, problem_of
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer

# --- from bertender.measure.latency
# Latency of classifiers, measured interleaved: text in, logits out, tokenisation included.
#
# In every round each classifier runs on the same texts, in an order shuffled from round to
# round, so a machine that slows down or speeds up does so for all rows. Speedups are formed
# within
# a round, where the machine was the same for both. Raw samples are stored. `measure.fresh` opens
# the
# rows of each engine in a process of its own, and merges several repetitions.


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


# --- from bertender.measure.line_process
# A Python process that is asked in lines: each is followed by one line of its results.

ROOT = Path(__file__).resolve().parents[2]
"""Folder of this package, where a fresh process must find it."""


class LineProcess:
    """A process that runs.

    Args:
        process: reads lines and writes a line for each.
        errors: what it prints besides.
        purpose: what it is, for messages: "a process that timed 3 rows".
        hint: the next step when it ends, for messages.
    """

    def __init__(
        self, process: subprocess.Popen[str], errors: IO[bytes], purpose: str, hint: str
    ) -> None:
        self.process = process
        self.errors = errors
        self.purpose = purpose
        self.hint = hint

    def ask(self, line: str) -> str:
        """Return the line that follows one.

        Raises:
            ModelError: the process has ended.
        """
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):  # it has ended: no line follows
            print(line, file=self.process.stdin, flush=True)
        if result := self.process.stdout.readline():
            return result
        status = self.process.wait()
        self.errors.seek(0)
        last = self.errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        raise ModelError(
            f"{self.purpose} ended with status {status}: {last or 'it printed nothing'}"
            f"{'.' if self.hint else ''}{self.hint}"
        )


@contextmanager
def line_process(
    module: str,
    purpose: str,
    *,
    hint: str = "",
    python: str = sys.executable,
    variables: Mapping[str, str] | None = None,
) -> Iterator[LineProcess]:
    """Start a module in a fresh process, which ends with the block.

    Args:
        module: of this project; its results are the lines of its standard output.
        purpose: what the process is, for messages.
        hint: a sentence for messages: what to do when it ends.
        python: the interpreter, which may be of another environment.
        variables: of the environment, added to those of this process.
    """
    # packages of this process are none of another environment's
    own = [os.environ.get("PYTHONPATH")] if python == sys.executable else []
    places = [str(ROOT), *filter(None, own)]
    with (
        TemporaryFile() as errors,
        # -P: no file of the folder that this runs in stands before a library of the same name
        subprocess.Popen(
            [python, "-P", "-m", module],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places), **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
        ) as process,
    ):
        try:
            yield LineProcess(process, errors, purpose, hint)
        finally:
            process.kill()  # it has no more to do, and nothing to save
            if process.stdin:
                with suppress(BrokenPipeError):  # a line that it did not read
                    process.stdin.close()


# --- from bertender.measure.fresh
# Latency over fresh processes, by name: what differs from run to run is in the interval.
#
# Where a process lies in memory and how its threads were placed changes its times by more than
# its
# own rounds show. So a timing is repeated, each time in fresh processes: one for each engine
# (PyTorch
# or a runtime), whose rows it opens, so that no engine's threads and memory disturb another's.
# All
# rows still take turns, one after another, and the raw samples are merged. The first row is timed
# twice: its ratio to itself is the noise floor.


class TimedModel(Record):
    """A row, by name."""

    name: str
    artifact: Path
    graph: Path | None = Field(
        None, description="ONNX file to run instead of the artifact's own model"
    )
    runtime: str = Field(DEFAULT_RUNTIME, description="row of RUNTIMES that runs an ONNX file")

    @property
    def engine(self) -> str:
        """The runtime, or the kind of an artifact that no runtime runs."""
        if self.graph is not None:
            return self.runtime
        artifact = Artifact.load(self.artifact, verify=False)
        return runtime_of(artifact, self.runtime) or artifact.card.kind

    def open(self, threads: int, max_length: int | None) -> Classifier:
        """Open it as `open_classifier` does; its files were checked by who made the request."""
        artifact = Artifact.load(self.artifact, verify=False)
        if self.graph is None:
            opened = open_classifier(
                artifact, threads=threads, max_length=max_length, runtime=self.runtime
            )
            return replace(opened, name=self.name)
        problem, labels = problem_of(artifact), artifact.card.task.labels
        encode = problem.encoder(load_tokenizer(artifact.path, max_length))
        predictor = RUNTIMES[self.runtime].open(self.graph, threads)
        return Classifier(self.name, labels, encode, predictor, 0, problem)


class TimingRequest(Record):
    """Rows and settings that one process times."""

    models: tuple[TimedModel, ...]
    examples: tuple[Example, ...]
    config: LatencyConfig
    max_length: int | None = Field(description="longest input in tokens")
    process: int = Field(description="its number")

    def classifiers(self) -> list[Classifier]:
        """Open every row in this process."""
        threads = threads_of(self.config)
        return [each.open(threads, self.max_length) for each in self.models]

    def opened(self) -> Turns:
        """Open every row, ready to be timed in turns."""
        return Turns(self.classifiers(), self.examples, self.config, self.process)

    def of_rows(self, rows: Sequence[int]) -> Self:
        """Return the request of some of its rows."""
        return self.model_copy(update={"models": tuple(self.models[row] for row in rows)})

    def by_engine(self) -> list[list[int]]:
        """Return the numbers of the rows of each engine."""
        rows: dict[str, list[int]] = {}
        for row, model in enumerate(self.models):
            rows.setdefault(model.engine, []).append(row)
        return [*rows.values()]


def measure_models(
    models: Sequence[TimedModel],
    examples: Sequence[Example],
    config: LatencyConfig,
    *,
    max_length: int | None = None,
) -> LatencyReport:
    """Time models against each other in `config.processes` fresh processes.

    Args:
        models: the first is what speedups are relative to; it is timed twice.
        examples: texts to draw from.
        config: what is timed; with one process it is this one.
        max_length: longest input in tokens; None takes each artifact's own.

    Raises:
        ConfigError: no models.
        ModelError: a process ended without a result.
        MachineBusyError: other work disturbs the times, and the config does not allow noisy ones.
    """
    if not models:
        raise ConfigError("no models to time: give at least one, the first is the reference.")
    request = TimingRequest(
        models=(*models, models[0]),
        examples=tuple(examples),
        config=config,
        max_length=max_length,
        process=0,
    )
    report = _here(request) if config.processes == 1 else _in_fresh_processes(request)
    *rows, again = report.rows
    return report.model_copy(update={"rows": tuple(rows), "noise_floor": again})


def _here(request: TimingRequest) -> LatencyReport:
    return measure_latency(request.classifiers(), request.examples, request.config)


def _in_fresh_processes(request: TimingRequest) -> LatencyReport:
    config = request.config
    if not config.noisy:
        check_load_now()
    # each repetition reports its load; how much is too much is judged here
    of_one = {"config": config.model_copy(update={"processes": 1, "noisy": True})}
    reports, numbers = [], range(config.processes)
    for number in track(numbers, "time in fresh processes", len(numbers)):
        reports.append(_in_engines(request.model_copy(update={**of_one, "process": number})))
        if load := reports[-1].load:
            check_load(load, config.noisy)
    load = busiest([report.load for report in reports if report.load])
    return merged(reports, config).model_copy(update={"load": load})


def _in_engines(request: TimingRequest) -> LatencyReport:
    names, texts = [each.name for each in request.models], len(request.examples)
    with open_engines(request) as take:
        return time_in_turns(names, take, texts, request.config, process=request.process)


@contextmanager
def open_engines(request: TimingRequest) -> Iterator[TakeTurn]:
    """Open the rows in fresh processes, one for each engine, until the block ends."""
    with ExitStack() as stack:
        places: dict[int, tuple[_Engine, int]] = {}
        for rows in request.by_engine():
            engine = stack.enter_context(_engine(request.of_rows(rows)))
            places |= {row: (engine, place) for place, row in enumerate(rows)}

        def take(row: int, number: int) -> Turn:
            engine, place = places[row]
            return engine.take(place, number)

        yield take


class _Engine:
    """A process that has some rows open."""

    def __init__(self, process: LineProcess) -> None:
        self.process = process

    def take(self, row: int, number: int) -> Turn:
        single_ms, batch_ms = json.loads(self.process.ask(f"{row} {number}"))
        return Turn(tuple(single_ms), batch_ms)


@contextmanager
def _engine(request: TimingRequest) -> Iterator[_Engine]:
    """Open rows in a fresh process, which ends with the block."""
    purpose = f"a process that timed {len(request.models)} rows"
    hint = " Time in this process with processes=1 (--processes 1) to see all of it."
    with line_process("bertender.comparison.timing_process", purpose, hint=hint) as process:
        process.ask(request.model_dump_json())
        yield _Engine(process)
