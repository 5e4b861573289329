"""Latency of classifiers, timed in turns in fresh processes: text in, logits out.

In every round, all classifiers run on the same texts in a random order, so that a machine that
slows down or speeds up affects all rows. Speedups are ratios within a round. Raw samples are
stored.

The memory layout and thread placement of a process change its times by more than its rounds show.
So a timing is repeated in fresh processes: one for each engine (PyTorch or a runtime), which opens
the engine's rows, so that engines do not disturb each other. All rows still take turns, and the raw
samples are merged. The first row is timed twice: its ratio to itself is the noise floor.

This module is also the program of these processes. The first line of standard input is a
TimingRequest; an empty line is answered once the rows are open; each further line "ROW ROUND" is
answered by that turn, as JSON.
"""

from __future__ import annotations

import gc
import io
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

from bertender.comparison.cascade import as_classifier
from bertender.comparison.records import (
    Latency,
    LatencyConfig,
    LatencyReport,
    Rounds,
    percentiles,
    speedup_over_processes,
)
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError, DataError, ModelError
from bertender.core.hardware import keep_freed_memory
from bertender.core.machine import busiest, check_load, check_load_now, environment, watched_load
from bertender.core.progress import progress_bar, track
from bertender.models.classifier import Classifier, open_classifier, problem_of
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, runtime_of
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer

ROOT = Path(__file__).resolve().parents[2]
"""Folder with this package, for fresh processes."""


class Turn(NamedTuple):
    """Times of one classifier in one round."""

    single_ms: tuple[float, ...]
    batch_ms: float


TakeTurn = Callable[[int, int], Turn]
"""(row, round) -> its times"""


class Turns:
    """Times classifiers open in this process, one turn at a time. The number of a round determines
    its texts, so that rows in other processes time the same texts.

    Args:
        classifiers: classifiers opened with `threads=threads_of(config)`.
        examples: texts to draw from.
        config: settings of the timing. process: number of this repetition; each draws other texts.
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
        """Time one classifier for a round, after warm-up texts.

        Worker threads of another runtime may still spin for a while after its last call.
        """
        singles, batch = drawn_texts(self.examples, self.config, self.process, number)
        classifier = self.classifiers[row]
        # runtimes compile for shapes: each shape runs once before its timing
        for texts in (*([example] for example in singles), batch):
            encoded = classifier.encode(texts)
            for shape in {array.shape for array in encoded.arrays.values()}:
                if (row, shape) not in self._prepared:
                    classifier.predictor.logits(encoded)
                    self._prepared.add((row, shape))
        for example in singles[: self.config.warmup_texts]:
            classifier.logits([example])
        single_ms = tuple(_time_ms(classifier, [example]) for example in singles)
        return Turn(single_ms, _time_ms(classifier, batch))


def drawn_texts(
    examples: Sequence[Example], config: LatencyConfig, process: int, number: int
) -> tuple[list[Example], list[Example]]:
    """Return the single texts and the batch of a round, drawn by its number.

    Args:
        examples: texts to draw from.
        config: settings with the number of each.
        process: number of this repetition.
        number: number of the round.
    """
    generator = np.random.default_rng([config.seed, process, number])

    def drawn(count: int) -> list[Example]:
        rows = generator.choice(len(examples), min(count, len(examples)), replace=False)
        return [examples[row] for row in rows.tolist()]

    return drawn(config.single_texts), drawn(config.batch_size)


def _time_ms(classifier: Classifier, examples: Sequence[Example]) -> float:
    started = time.perf_counter_ns()
    classifier.logits(examples)
    return round((time.perf_counter_ns() - started) / 1e6, 4)


def measure_latency(
    classifiers: Sequence[Classifier],
    examples: Sequence[Example],
    config: LatencyConfig,
    *,
    process: int = 0,
) -> LatencyReport:
    """Time classifiers against each other in this process; speedups are relative to the first. Open
    them with `threads=threads_of(config)`: runtimes fix their threads at opening. PyTorch's are set
    here, and reset.

    Args:
        classifiers: classifiers to time; the first is the reference.
        examples: texts to draw from.
        config: settings of the timing; `processes` is for `measure_models`.
        process: number of this repetition; each draws other texts.

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
    """Time rows against each other, in whatever processes they are open.

    Args:
        names: names of the rows; the first is the reference.
        take: times a row for a round.
        texts: number of texts to draw from.
        config: settings of the timing.
        process: number of this repetition.

    Raises:
        MachineBusyError: other work disturbs the times, and the config does not allow noisy ones.
    """
    turns: list[list[Turn]] = [[] for _ in names]
    generator = np.random.default_rng([config.seed, process])
    rounds = config.warmup_rounds + config.rounds
    with (
        watched_load(config.noisy) as meter,
        progress_bar("time", rounds * len(names)) as bar,
    ):
        for number in range(rounds):
            for row in generator.permutation(len(names)).tolist():
                turns[row].append(take(row, number))
                bar.advance()
    timed = [of_row[config.warmup_rounds :] for of_row in turns]
    single_ms = [[[turn.single_ms for turn in of_row]] for of_row in timed]
    batch_ms = [[[turn.batch_ms for turn in of_row]] for of_row in timed]
    batch_texts = min(config.batch_size, texts)
    return LatencyReport(
        config=config,
        threads=threads_of(config),
        batch_texts=batch_texts,
        rows=_rows(names, single_ms, batch_ms, batch_texts, config.seed),
        load=meter.load,
    )


def merged(reports: Sequence[LatencyReport], config: LatencyConfig) -> LatencyReport:
    """Merge the reports of several processes on the same rows."""
    one = reports[0]
    by_row = list(zip(*(report.rows for report in reports), strict=True))
    single_ms = [[rounds for row in rows for rounds in row.single_ms] for rows in by_row]
    batch_ms = [[rounds for row in rows for rounds in row.batch_ms] for rows in by_row]
    return LatencyReport(
        config=config,
        threads=one.threads,
        batch_texts=one.batch_texts,
        rows=_rows(
            [row.name for row in one.rows], single_ms, batch_ms, one.batch_texts, config.seed
        ),
        load=busiest([report.load for report in reports]),
    )


def _rows(
    names: Sequence[str],
    single_ms: Sequence[Sequence[Rounds]],
    batch_ms: Sequence[Sequence[Sequence[float]]],
    batch_texts: int,
    seed: int,
) -> tuple[Latency, ...]:
    """Compute each row's figures from its samples by process; the first row is the reference."""
    rows = []
    for name, single, batch in zip(names, single_ms, batch_ms, strict=True):
        batches = np.concatenate(batch)
        rows.append(
            Latency(
                name=name,
                single=percentiles(np.concatenate([texts for each in single for texts in each])),
                batch=percentiles(batches),
                texts_per_second=1000 * batch_texts * len(batches) / float(batches.sum()),
                speedup=speedup_over_processes(single_ms[0], single, seed),
                single_ms=single,
                batch_ms=batch,
            )
        )
    return tuple(rows)


def threads_of(config: LatencyConfig) -> int:
    """Return the number of threads of a config; 0 is every usable core."""
    return config.threads or environment().cores


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


class PassedOn(Record):
    """The strong model of a cascade, and the threshold."""

    artifact: Path
    runtime: str = DEFAULT_RUNTIME
    threshold: float


class TimedModel(Record):
    """A row to time, with its name."""

    name: str
    artifact: Path
    graph: Path | None = Field(
        None, description="ONNX file to run instead of the artifact's own model"
    )
    runtime: str = Field(DEFAULT_RUNTIME, description="row of RUNTIMES that runs an ONNX file")

    then: PassedOn | None = Field(None, description="of a cascade, whose small model this is")

    @property
    def engine(self) -> str:
        """The runtime, or the kind of an artifact without one; a cascade has its own process, as
        its models may use two runtimes."""
        if self.then is not None:
            return self.name
        if self.graph is not None:
            return self.runtime
        artifact = Artifact.load(self.artifact, verify=False)
        return runtime_of(artifact, self.runtime) or artifact.card.kind

    def open(self, threads: int, max_length: int | None, *, spinning: bool = True) -> Classifier:
        """Open the row as `open_classifier` does; the caller has checked its files. Spinning
        threads of one model of a cascade would take the cores of the other.
        """
        if self.then is not None:
            places = (self.artifact, self.runtime), (self.then.artifact, self.then.runtime)
            small, strong = (
                TimedModel(name=self.name, artifact=path, runtime=runtime).open(
                    threads, max_length, spinning=False
                )
                for path, runtime in places
            )
            return as_classifier(self.name, small, strong, self.then.threshold)
        artifact = Artifact.load(self.artifact, verify=False)
        if self.graph is None:
            opened = open_classifier(
                artifact,
                threads=threads,
                max_length=max_length,
                runtime=self.runtime,
                spinning=spinning,
            )
            return replace(opened, name=self.name)
        problem, labels = problem_of(artifact), artifact.card.task.labels
        encode = problem.encoder(load_tokenizer(artifact.path, max_length))
        predictor = RUNTIMES[self.runtime].open(self.graph, threads, spinning=spinning)
        return Classifier(self.name, labels, encode, predictor, 0, problem)


class TimingRequest(Record):
    """Rows and settings for one timing process."""

    models: tuple[TimedModel, ...]
    examples: tuple[Example, ...]
    config: LatencyConfig
    max_length: int | None = Field(description="longest input in tokens")
    process: int = Field(description="its number")

    def classifiers(self) -> list[Classifier]:
        """Open every row in this process."""
        threads = threads_of(self.config)
        return [each.open(threads, self.max_length) for each in self.models]

    def of_rows(self, rows: Sequence[int]) -> Self:
        """Return the request for some of its rows."""
        return self.model_copy(update={"models": tuple(self.models[row] for row in rows)})

    def by_engine(self) -> list[list[int]]:
        """Return the row numbers of each engine."""
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
    """Time models against each other in `config.processes` repetitions of fresh processes.

    Args:
        models: models to time; the first, timed twice, is the reference for speedups.
        examples: texts to draw from.
        config: settings of the timing; with one process, it runs in this process.
        max_length: longest input in tokens; None for each artifact's own.

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
    if config.processes == 1:
        keep_freed_memory()  # as after a training in this process
        report = measure_latency(request.classifiers(), request.examples, config)
    else:
        report = _in_fresh_processes(request)
    *rows, again = report.rows
    return report.model_copy(update={"rows": tuple(rows), "noise_floor": again})


def _in_fresh_processes(request: TimingRequest) -> LatencyReport:
    config, texts = request.config, len(request.examples)
    if not config.noisy:
        check_load_now()
    # each repetition reports its load, which is checked here
    of_one = config.model_copy(update={"processes": 1, "noisy": True})
    reports, names = [], [each.name for each in request.models]
    for number in track(range(config.processes), "time in fresh processes", config.processes):
        repetition = request.model_copy(update={"config": of_one, "process": number})
        with open_engines(repetition) as take:
            reports.append(time_in_turns(names, take, texts, of_one, process=number))
        check_load(reports[-1].load, config.noisy)
    return merged(reports, config)


@contextmanager
def open_engines(request: TimingRequest) -> Iterator[TakeTurn]:
    """Open the rows in fresh processes, one for each engine, until the block ends."""
    with ExitStack() as stack:
        places: dict[int, tuple[LineProcess, int]] = {}
        for rows in request.by_engine():
            purpose = f"a process that timed {len(rows)} rows"
            hint = " Time in this process with processes=1 (--processes 1) to see all of it."
            process = stack.enter_context(line_process(__name__, purpose, hint=hint))
            process.ask(request.of_rows(rows).model_dump_json())
            places |= {row: (process, place) for place, row in enumerate(rows)}

        def take(row: int, number: int) -> Turn:
            process, place = places[row]
            single_ms, batch_ms = json.loads(process.ask(f"{place} {number}"))
            return Turn(tuple(single_ms), batch_ms)

        yield take


class LineProcess:
    """A Python process that answers each input line with a line.

    Args:
        process: reads lines and writes a line for each.
        errors: its standard error stream.
        purpose: its description in messages: "a process that timed 3 rows".
        hint: the next step in messages when it ends.
    """

    def __init__(
        self, process: subprocess.Popen[str], errors: IO[bytes], purpose: str, hint: str
    ) -> None:
        self.process = process
        self.errors = errors
        self.purpose = purpose
        self.hint = hint

    def ask(self, line: str) -> str:
        """Return the process's answer to a line.

        Raises:
            ModelError: the process has ended.
        """
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):  # the process has ended
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
        module: module of this project; it answers on standard output.
        purpose: description of the process in messages.
        hint: next step in messages when it ends, a sentence.
        python: the interpreter, which may be of another environment.
        variables: environment variables to add to this process's.
    """
    # another environment has its own packages
    own = [os.environ.get("PYTHONPATH")] if python == sys.executable else []
    places = [str(ROOT), *filter(None, own)]
    with (
        TemporaryFile() as errors,
        # -P: files in the current folder do not shadow libraries
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
            process.kill()  # nothing is left to do or save
            if process.stdin:
                with suppress(BrokenPipeError):  # an unread line
                    process.stdin.close()


def main() -> None:
    """Open the rows of a request, and time the requested turns until the input ends."""
    with os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as results:
        os.dup2(2, 1)  # libraries' output must not mix with results
        assert isinstance(sys.stdin, io.TextIOWrapper)
        sys.stdin.reconfigure(encoding="utf-8")  # whatever the locale is
        request = TimingRequest.model_validate_json(sys.stdin.readline())
        turns = Turns(request.classifiers(), request.examples, request.config, request.process)
        with quiet(threads_of(request.config)):
            print(file=results)
            for line in sys.stdin:
                row, number = map(int, line.split())
                print(json.dumps(turns.take(row, number)), file=results)


if __name__ == "__main__":
    main()
