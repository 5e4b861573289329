"""The same artifacts in every runtime: score, and time at three shapes, on this machine.

    python -m benchmarks.runtimes FLOAT QUANTIZED ... --out FILE.json [--runtime NAME,NAME]

FLOAT is an exported model, the others are quantized from it, or FLOAT in float16 for GPUs. Every
artifact is a row in each runtime that it is meant for, with equal threads; each engine has a
process of its own, and all rows take turns. Single
texts and batches of 32 have their natural length; then texts of LONG_TOKENS tokens are timed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from benchmarks.common.long_texts import LONG_TOKENS, long_texts
from benchmarks.common.options import OptionalOutFile, RuntimesOption, ThreadsOption
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from bertender.comparison.compare import compare, timed_models
from bertender.comparison.latency import measure_models
from bertender.comparison.records import CompareConfig, Comparison, LatencyReport
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.core.progress import show_progress
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.batch import Tokenize
from bertender.text.tokenizer import load_tokenizer, longest_input

__all__ = ["RuntimeBenchmark", "compare_runtimes", "run"]

LONG_TEXTS = 50
"""Drawn from in each round."""


class RuntimeBenchmark(Record):
    """A comparison over runtimes, and the times of its rows on long texts."""

    comparison: Comparison = Field(description="texts of natural length; its rows' latency too")
    layers: int
    long: LatencyReport = Field(description="single texts of LONG_TOKENS tokens, the same rows")


def compare_runtimes(
    artifacts: Sequence[Artifact], task: Task, config: CompareConfig
) -> RuntimeBenchmark:
    """Score and time onnx artifacts in the runtimes of a config; the first is the float one.

    Raises:
        ConfigError: the first artifact was not exported, or the first runtime is another.
    """
    first = artifacts[0]
    graph = first.card.findings.graph
    if graph is None:
        raise ConfigError(
            f"{first.name} was not exported: give what `bertender export` wrote first."
        )
    if config.runtime[0] != DEFAULT_RUNTIME:
        raise ConfigError(f"{DEFAULT_RUNTIME} is what others are compared with: name it first.")
    tokenizer = load_tokenizer(first.path)
    tokens = min(LONG_TOKENS, longest_input(tokenizer))
    encode = Tokenize(tokenizer, tokens)
    texts = long_texts(task.dev.examples, encode, LONG_TEXTS)
    comparison = compare(artifacts, task, config)
    alone = config.model_copy(update={"batch_size": 1})
    models = timed_models(artifacts, config.runtime)
    return RuntimeBenchmark(
        comparison=comparison,
        layers=graph.layers,
        long=measure_models(models, texts, alone, max_length=tokens),
    )


def run(
    artifacts: Annotated[list[Path], typer.Argument(help="ONNX artifacts, the float one first")],
    out: OptionalOutFile = None,
    runtime: RuntimesOption = "onnxruntime,openvino",
    threads: ThreadsOption = 0,
    noisy: NoisyFlag = False,
) -> None:
    """Score and time the same artifacts in several runtimes."""
    show_progress()
    check_noisy_out(noisy, out)
    opened = [Artifact.load(path) for path in artifacts]
    config = CompareConfig.parse({"runtime": runtime, "threads": threads, "noisy": noisy})
    result = compare_runtimes(opened, recorded_task(opened[0], {}), config)
    for row, long in zip(result.comparison.rows, result.long.rows, strict=True):
        shown = row.latency.single.p50_ms, long.single.p50_ms, row.latency.batch.p50_ms
        times = ", ".join(f"{value:.2f} ms" for value in shown)
        typer.echo(f"{row.name}: {row.score.value:.4f}, {times}")
    if out is not None:
        save_benchmark(result, out)
