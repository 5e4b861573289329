"""Latency over fresh processes, by name: what differs from run to run is in the interval.

Where a process lies in memory and how its threads were placed changes its times by more than its
own rounds show. So a timing is repeated, each time in fresh processes: one for each engine (PyTorch
or a runtime), whose rows it opens, so that no engine's threads and memory disturb another's. All
rows still take turns, one after another, and the raw samples are merged. The first row is timed
twice: its ratio to itself is the noise floor.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.core.progress import track
from bertender.measure.latency import (
    LatencyConfig,
    LatencyReport,
    TakeTurn,
    Turn,
    Turns,
    measure_latency,
    merged,
    threads_of,
    time_in_turns,
)
from bertender.measure.line_process import LineProcess, line_process
from bertender.measure.load import busiest, check_load, check_load_now
from bertender.measure.runtimes import runtime_of
from bertender.models.opening import open_classifier
from bertender.models.predictor import Classifier
from bertender.models.recorded_problem import problem_of
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from bertender.text.batch import load_tokenizer
from bertender.text.example import Example

__all__ = ["TimedModel", "TimingRequest", "measure_models", "open_engines"]


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
        encode = problem.encoder(load_tokenizer(artifact.path, max_length), None)
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
    with line_process("bertender.measure.timing_process", purpose, hint=hint) as process:
        process.ask(request.model_dump_json())
        yield _Engine(process)
