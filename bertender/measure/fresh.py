"""Latency over fresh processes, by name: what differs from run to run is in the interval.

Where a process lies in memory and how its threads were placed changes its times by more than its
own rounds show. So each of several processes opens every row and times all of them in turns;
one after another, their raw samples are merged. The first row is timed twice: its ratio to itself
is the noise floor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError, ModelError
from bertender.core.progress import track
from bertender.measure.latency import (
    LatencyConfig,
    LatencyReport,
    measure_latency,
    merged,
    threads_of,
)
from bertender.measure.load import busiest, check_load, check_load_now
from bertender.models.onnx_predictor import OnnxPredictor
from bertender.models.opening import open_classifier, problem_of
from bertender.models.predictor import Classifier
from bertender.text.batch import load_tokenizer
from bertender.text.example import Example

__all__ = ["TimedModel", "TimingRequest", "measure_models"]

ROOT = Path(__file__).resolve().parents[2]
"""Folder of this package, where a fresh process must find it."""


class TimedModel(Record):
    """A row, by name."""

    name: str
    artifact: Path
    graph: Path | None = Field(
        None, description="ONNX file to run instead of the artifact's own model"
    )

    def open(self, threads: int, max_length: int | None) -> Classifier:
        """Open it as `open_classifier` does; its files were checked by who made the request."""
        artifact = Artifact.load(self.artifact, verify=False)
        if self.graph is None:
            opened = open_classifier(artifact, threads=threads, max_length=max_length)
            return replace(opened, name=self.name)
        problem, labels = problem_of(artifact), artifact.card.task.labels
        encode = problem.encoder(load_tokenizer(artifact.path), max_length)
        predictor = OnnxPredictor(self.graph, threads)
        return Classifier(self.name, labels, encode, predictor, 0, problem)


class TimingRequest(Record):
    """Rows and settings that one process times."""

    models: tuple[TimedModel, ...]
    examples: tuple[Example, ...]
    config: LatencyConfig
    max_length: int | None = Field(description="longest input in tokens")
    process: int = Field(description="its number")

    def run(self) -> LatencyReport:
        """Open every row and time all of them in this process."""
        opened = [each.open(threads_of(self.config), self.max_length) for each in self.models]
        return measure_latency(opened, self.examples, self.config, process=self.process)


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
        max_length: longest input in tokens; None takes each tokenizer's own limit.

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
    report = request.run() if config.processes == 1 else _in_fresh_processes(request)
    *rows, again = report.rows
    return report.model_copy(update={"rows": tuple(rows), "noise_floor": again})


def _in_fresh_processes(request: TimingRequest) -> LatencyReport:
    config = request.config
    if not config.noisy:
        check_load_now()
    # each reports its load and leaves the judgement to this process
    of_one = {"config": config.model_copy(update={"processes": 1, "noisy": True})}
    reports, numbers = [], range(config.processes)
    for number in track(numbers, "time in fresh processes", len(numbers)):
        reports.append(_in_fresh_process(request.model_copy(update={**of_one, "process": number})))
        if load := reports[-1].load:
            check_load(load, config.noisy)
    load = busiest([report.load for report in reports if report.load])
    return merged(reports, config).model_copy(update={"load": load})


def _in_fresh_process(request: TimingRequest) -> LatencyReport:
    with TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        # -P: no file of the folder that this runs in stands before a library of the same name
        process = subprocess.run(
            [sys.executable, "-P", "-m", "bertender.measure.timing_process", str(out)],
            input=request.model_dump_json(),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        if process.returncode:
            last = process.stderr.strip().rpartition("\n")[2]
            raise ModelError(
                f"a process that timed {len(request.models)} rows ended with status "
                f"{process.returncode}: {last or 'it printed nothing'}. Time in this process with "
                "processes=1 (--processes 1) to see all of it."
            )
        return LatencyReport.model_validate_json(out.read_text(encoding="utf-8"))
