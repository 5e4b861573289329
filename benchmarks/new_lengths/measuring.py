"""Times the first text of each length: a runtime may compile a graph for a shape when it comes.

    python -m benchmarks.new_lengths GRAPH ... --out FILE.json [--runtime NAME,NAME]

Each graph is opened in each runtime, in a fresh process. A first text warms it up; then a text of
every other length in tokens that the held-out texts have is run alone, in a random order, and all
of them again in the same order, as often as LATER_RUNS.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import typer
from pydantic import Field

from benchmarks.common.options import (
    OnnxArtifactArguments,
    OptionalOutFile,
    RuntimesOption,
    ThreadsOption,
)
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.profiles.measuring import check_timeable
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import DataError
from bertender.core.progress import show_progress, track
from bertender.measure.comparison import CompareConfig
from bertender.measure.latency import LatencyConfig, threads_of
from bertender.measure.load import MachineLoad, watched_load
from bertender.models.opening import open_classifier
from bertender.models.predictor import Classifier
from bertender.pipeline.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.example import Example

__all__ = ["NewLengths", "NewLengthsBenchmark", "measure_new_lengths", "run", "time_lengths"]

LATER_RUNS = 3


class NewLengths(Record):
    """One graph in one runtime."""

    name: str
    precision: str
    runtime: str
    tokens: tuple[int, ...] = Field(description="of each text, in the order that they came")
    first_ms: tuple[float, ...] = Field(description="of each text, alone")
    later_ms: tuple[tuple[float, ...], ...] = Field(description="the same, LATER_RUNS times")
    load: MachineLoad


class NewLengthsBenchmark(Record):
    """Every graph in every runtime, and their conditions."""

    task: str
    threads: int
    rows: tuple[NewLengths, ...]
    environment: Environment


def measure_new_lengths(
    artifacts: Sequence[Artifact], task: Task, runtimes: Sequence[str], config: LatencyConfig
) -> NewLengthsBenchmark:
    """Time a text of every length for the first time, and later, in every runtime.

    Raises:
        RuntimeMissingError: a runtime is not installed.
        ModelError: an artifact has no graph, or a runtime cannot open it.
        MachineBusyError: other work disturbs the times, and the config allows no noisy ones.
    """
    check_timeable(artifacts, runtimes, config)
    pairs = [(artifact, runtime) for artifact in artifacts for runtime in runtimes]
    rows = []
    for artifact, runtime in track(pairs, "time lengths", len(pairs)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            row = fresh.submit(time_lengths, artifact.path, runtime, task.dev.examples, config)
            rows.append(row.result())
    return NewLengthsBenchmark(
        task=task.name, threads=threads_of(config), rows=tuple(rows), environment=environment()
    )


def time_lengths(
    path: Path, runtime: str, examples: Sequence[Example], config: LatencyConfig
) -> NewLengths:
    """Measure a row in this process, which should have run nothing yet.

    Raises:
        DataError: the texts have a single length.
        MachineBusyError: other work disturbs the times, and the config allows no noisy ones.
    """
    artifact = Artifact.load(path, verify=False)
    classifier = open_classifier(artifact, threads=threads_of(config), runtime=runtime)
    tokens, (warm_up, *texts) = _of_every_length(examples, classifier, config.seed)
    if not texts:
        raise DataError(f"the texts of {artifact.path} all have {tokens[0]} tokens. Give others.")
    with watched_load(config.noisy) as meter:
        classifier.logits([warm_up])
        first, *later = (
            tuple(_milliseconds(classifier, text) for text in texts) for _ in range(1 + LATER_RUNS)
        )
    return NewLengths(
        name=artifact.name,
        precision=artifact.card.precision,
        runtime=runtime,
        tokens=tokens[1:],
        first_ms=first,
        later_ms=tuple(later),
        load=meter.load,
    )


def _of_every_length(
    examples: Sequence[Example], classifier: Classifier, seed: int
) -> tuple[tuple[int, ...], list[Example]]:
    """Return the lengths in tokens that texts have, and one of each, in a random order."""
    by_tokens: dict[int, Example] = {}
    for each in examples:
        by_tokens.setdefault(classifier.encode([each]).arrays["input_ids"].shape[1], each)
    lengths = np.random.default_rng(seed).permutation(sorted(by_tokens)).tolist()
    return tuple(lengths), [by_tokens[length] for length in lengths]


def _milliseconds(classifier: Classifier, text: Example) -> float:
    start = time.perf_counter()
    classifier.logits([text])
    return 1000 * (time.perf_counter() - start)


def run(
    artifacts: OnnxArtifactArguments,
    out: OptionalOutFile = None,
    runtime: RuntimesOption = "onnxruntime,openvino",
    threads: ThreadsOption = 0,
    noisy: NoisyFlag = False,
) -> None:
    """Time the first text of every length in several runtimes."""
    show_progress()
    check_noisy_out(noisy, out)
    opened = [Artifact.load(path) for path in artifacts]
    config = LatencyConfig(threads=threads, noisy=noisy)
    runtimes = CompareConfig.parse({"runtime": runtime}).runtime
    result = measure_new_lengths(opened, recorded_task(opened[0], {}), runtimes, config)
    for each in result.rows:
        typer.echo(f"{each.name} in {each.runtime}: {sum(each.first_ms):.1f} ms for all, at first")
    if out is not None:
        save_benchmark(result, out)
