"""What optimising a graph before it is written gains on this machine.

    python -m benchmarks.fusion TEACHER --work DIR --out FILE.json [--rounds 30]

A teacher is exported by each row of OPTIMIZATIONS, quantized dynamically from the plain and the
fused graph, and all of them are timed in turns. ONNX Runtime optimises what it opens in any case,
as it does at an endpoint; what is compared is what doing it beforehand adds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import psutil
import typer
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import Field

from benchmarks.long_texts import LONG_TOKENS, long_texts
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment, has_int8_acceleration
from bertender.core.predictor import Classifier, OnnxPredictor, onnx_file
from bertender.core.progress import show_progress
from bertender.core.text import Tokenize, load_tokenizer
from bertender.measure.latency import LatencyConfig, LatencyReport, measure_latency, threads_of
from bertender.stages import recorded_task
from bertender.steps import save_result
from bertender.tasks.task import Task
from export.onnx_export import ExportConfig, export

__all__ = ["GRAPHS", "FusionBenchmark", "Graph", "compare_graphs", "run"]

LONG_TEXTS = 50
"""Drawn from in each round."""
INT8_OPERATORS = ["MatMul", "Gemm", "Gather", "Attention", "EmbedLayerNormalization"]


@dataclass(frozen=True)
class Graph:
    """A row of GRAPHS."""

    optimize: str
    precision: str
    against: str
    """The row that it is compared with."""


GRAPHS: Mapping[str, Graph] = {
    "float32": Graph("none", "float32", "float32"),
    "float32 basic": Graph("basic", "float32", "float32"),
    "float32 fused": Graph("fused", "float32", "float32"),
    "int8": Graph("none", "int8", "int8"),
    "int8 fused": Graph("fused", "int8", "int8"),
}


class FusionBenchmark(Record):
    """Every row of GRAPHS, timed at three shapes, and under what."""

    task: str
    teacher_layers: int
    fused: dict[str, dict[str, int]] = Field(
        description="row -> ONNX Runtime's own operators that its export has"
    )
    busy_elsewhere: float = Field(
        description="share of the machine's cores that other processes had while it was timed"
    )
    environment: Environment
    natural: LatencyReport = Field(description="single texts at their length, batches of mixed")
    long: LatencyReport = Field(description="single texts of LONG_TOKENS tokens")


def compare_graphs(
    teacher: Artifact, task: Task, config: LatencyConfig, work: Path
) -> FusionBenchmark:
    """Export, quantize and time; `work` gets the graphs."""
    exports = {
        optimize: export(teacher, task, ExportConfig(optimize=optimize), work / optimize)
        for optimize in ("none", "basic", "fused")
    }
    graphs = {
        name: _graph_of(row, exports[row.optimize], work / f"{name.replace(' ', '-')}.onnx")
        for name, row in GRAPHS.items()
    }
    encode = Tokenize(load_tokenizer(teacher.path), LONG_TOKENS)
    texts = long_texts(task.dev.examples, encode, LONG_TEXTS)
    alone = config.model_copy(update={"batch_size": 1})
    reports = {name: export_.card.metrics["graph"] for name, export_ in exports.items()}
    others = _Others()
    natural = measure_latency(_opened(graphs, teacher, config, None), task.dev.examples, config)
    long = measure_latency(_opened(graphs, teacher, config, LONG_TOKENS), texts, alone)
    return FusionBenchmark(
        task=task.name,
        teacher_layers=reports["none"]["layers"],
        fused={name: reports[row.optimize]["fused"] for name, row in GRAPHS.items()},
        busy_elsewhere=others.share(),
        environment=environment(),
        natural=natural,
        long=long,
    )


class _Others:
    """What other processes do from now on."""

    def __init__(self) -> None:
        self.began = self._seconds()

    def share(self) -> float:
        """Return the share of all cores that they had so far."""
        wall, others = (now - then for now, then in zip(self._seconds(), self.began, strict=True))
        return max(others, 0.0) / (wall * (psutil.cpu_count() or 1))

    @staticmethod
    def _seconds() -> tuple[float, float]:
        """Return the clock, and the processor time of all processes but this one."""
        every, own = psutil.cpu_times(), psutil.Process().cpu_times()
        return time.monotonic(), every.user + every.nice + every.system - own.user - own.system


def _graph_of(row: Graph, exported: Artifact, place: Path) -> Path:
    """Return the graph of a row, quantized where the row says so."""
    source = onnx_file(exported)
    if row.precision == "float32":
        return source
    quantize_dynamic(
        source,
        place,
        op_types_to_quantize=INT8_OPERATORS,
        per_channel=True,
        weight_type=QuantType.QInt8,
        reduce_range=not has_int8_acceleration(environment()),
        # what comes out of a fused operator is unknown to shape inference
        extra_options={"DefaultTensorType": TensorProto.FLOAT},
    )
    return place


def _opened(
    graphs: Mapping[str, Path], teacher: Artifact, config: LatencyConfig, max_length: int | None
) -> list[Classifier]:
    encode = Tokenize(load_tokenizer(teacher.path), max_length)
    labels, threads = teacher.card.task.labels, threads_of(config)
    return [
        Classifier(name, labels, encode, OnnxPredictor(path, threads), 0)
        for name, path in graphs.items()
    ]


def run(
    teacher: Annotated[Path, typer.Argument(help="torch artifact to export")],
    work: Annotated[Path, typer.Option(help="a folder for the graphs")],
    out: Annotated[Path | None, typer.Option(help="the JSON to write")] = None,
    rounds: Annotated[int, typer.Option(help="timed rounds of each graph")] = 30,
    single_texts: Annotated[int, typer.Option(help="texts of a round")] = 30,
    threads: Annotated[int, typer.Option(help="of ONNX Runtime; 0: every core")] = 0,
) -> None:
    """Time what optimising a graph before it is written gains."""
    show_progress()
    source = Artifact.load(teacher)
    config = LatencyConfig(rounds=rounds, single_texts=single_texts, threads=threads)
    work.mkdir(parents=True, exist_ok=True)
    result = compare_graphs(source, recorded_task(source, {}), config, work)
    for natural, long in zip(result.natural.rows, result.long.rows, strict=True):
        shown = natural.single.p50_ms, long.single.p50_ms, natural.batch.p50_ms
        typer.echo(f"{natural.name}: {', '.join(f'{value:.2f} ms' for value in shown)}")
    if out is not None:
        save_result(result, out)


if __name__ == "__main__":
    typer.run(run)
