"""Speedup of graphs that are optimised before they are written, on this machine.

    python -m benchmarks.fusion TEACHER --work DIR --out FILE.json [--rounds 10]

A teacher is exported by each row of OPTIMIZATIONS, quantized dynamically from the plain and the
fused graph, and all of them are timed in turns. ONNX Runtime optimises what it opens in any case,
as it does at an endpoint; what is compared is what doing it beforehand adds. One row is the plain
8-bit graph as ONNX Runtime optimises it with all of its optimizers, those of `LEFT_OUT` too (of
the float32 graph they make nothing else).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import onnx
import typer
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import Field

from benchmarks.long_texts import LONG_TOKENS, long_texts
from benchmarks.saving import NoisyFlag, check_noisy_out, save_benchmark
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.findings import GraphFindings
from bertender.core.processors import has_int8_acceleration
from bertender.core.progress import show_progress
from bertender.measure.fresh import TimedModel, measure_models
from bertender.measure.latency import LatencyConfig, LatencyReport
from bertender.models.onnx_session import open_session
from bertender.models.opening import onnx_file
from bertender.pipeline.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.batch import Tokenize, load_tokenizer
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
    left_out: Sequence[str] | None = None
    """Optimizers that ONNX Runtime leaves out where the graph is written as it really runs; None
    for the graph itself."""


GRAPHS: Mapping[str, Graph] = {
    "float32": Graph("none", "float32", "float32"),
    "float32 basic": Graph("basic", "float32", "float32"),
    "float32 fused": Graph("fused", "float32", "float32"),
    "int8": Graph("none", "int8", "int8"),
    "int8 fused": Graph("fused", "int8", "int8"),
    "int8 all optimizers": Graph("none", "int8", "int8", left_out=()),
}


class FusionBenchmark(Record):
    """Every row of GRAPHS, timed at three shapes, and under what."""

    task: str
    teacher_layers: int
    fused: dict[str, dict[str, int]] = Field(
        description="row -> ONNX Runtime's own operators that its export has"
    )
    skip_layer_norms: dict[str, int] = Field(
        description="row -> nodes of SkipLayerNormalization in the graph that really runs"
    )
    busy_elsewhere: float | None = Field(
        None, description="of earlier files; the reports have it now, as `load`"
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
    reports = {name: _graph_findings(export_) for name, export_ in exports.items()}
    models = _timed_models(graphs, teacher)
    natural = measure_models(models, task.dev.examples, config)
    long = measure_models(models, texts, alone, max_length=LONG_TOKENS)
    return FusionBenchmark(
        task=task.name,
        teacher_layers=reports["none"].layers,
        fused={name: reports[row.optimize].fused for name, row in GRAPHS.items()},
        skip_layer_norms={name: _skip_layer_norms(graph) for name, graph in graphs.items()},
        environment=environment(),
        natural=natural,
        long=long,
    )


def _graph_of(row: Graph, exported: Artifact, place: Path) -> Path:
    """Return the graph of a row, quantized and optimised if the row is."""
    written = _precise_graph_of(row, exported, place)
    if row.left_out is None:
        return written
    optimized = place.with_name(f"{place.stem}-optimized.onnx")
    open_session(written, optimized=optimized, left_out=row.left_out)
    return optimized


def _graph_findings(export_: Artifact) -> GraphFindings:
    findings = export_.card.findings.graph
    assert findings is not None, "what is exported has them"
    return findings


def _skip_layer_norms(graph: Path) -> int:
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / "model.onnx"
        open_session(graph, optimized=optimized)
        nodes = onnx.load(optimized, load_external_data=False).graph.node
    return sum(node.op_type == "SkipLayerNormalization" for node in nodes)


def _precise_graph_of(row: Graph, exported: Artifact, place: Path) -> Path:
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


def _timed_models(graphs: Mapping[str, Path], teacher: Artifact) -> list[TimedModel]:
    return [
        TimedModel(name=name, artifact=teacher.path.resolve(), graph=path.resolve())
        for name, path in graphs.items()
    ]


def run(
    teacher: Annotated[Path, typer.Argument(help="torch artifact to export")],
    work: Annotated[Path, typer.Option(help="a folder for the graphs")],
    out: Annotated[Path | None, typer.Option(help="the JSON to write")] = None,
    rounds: Annotated[int, typer.Option(help="timed rounds of each graph, by process")] = 10,
    single_texts: Annotated[int, typer.Option(help="texts of a round")] = 30,
    threads: Annotated[int, typer.Option(help="of ONNX Runtime; 0: every core")] = 0,
    processes: Annotated[int, typer.Option(help="fresh ones that time every graph")] = 3,
    noisy: NoisyFlag = False,
) -> None:
    """Time what optimising a graph before it is written gains."""
    show_progress()
    check_noisy_out(noisy, out)
    source = Artifact.load(teacher)
    config = LatencyConfig(
        rounds=rounds,
        single_texts=single_texts,
        threads=threads,
        processes=processes,
        noisy=noisy,
    )
    work.mkdir(parents=True, exist_ok=True)
    result = compare_graphs(source, recorded_task(source, {}), config, work)
    for natural, long in zip(result.natural.rows, result.long.rows, strict=True):
        shown = natural.single.p50_ms, long.single.p50_ms, natural.batch.p50_ms
        typer.echo(f"{natural.name}: {', '.join(f'{value:.2f} ms' for value in shown)}")
    if out is not None:
        save_benchmark(result, out)


if __name__ == "__main__":
    typer.run(run)
