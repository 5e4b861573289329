"""Speedup of graphs that are optimised before they are written, on this machine.

    python -m benchmarks.fusion TEACHER --work DIR --out FILE.json [--rounds 10]

A teacher is exported by each row of OPTIMIZATIONS, quantized dynamically from the plain and the
fused graph, and all of them are scored, and timed in turns. ONNX Runtime optimises what it opens in
any case, as it does at an endpoint; what is compared is what doing it beforehand adds. One row is
the plain 8-bit graph as ONNX Runtime optimises it with all of its optimizers, those of `LEFT_OUT`
too (of the float32 graph they make nothing else). Others are the 8-bit graphs in the forms of
`graph_rewrites`. A profile of each says in which operators it differs from the plain one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import onnx
import typer
from onnx import TensorProto
from onnxruntime.quantization import QuantType, quantize_dynamic
from pydantic import Field

from benchmarks.common.kernel_times import KernelTimes, kernel_times
from benchmarks.common.long_texts import LONG_TOKENS, long_texts
from benchmarks.common.options import OptionalOutFile
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.fusion.graph_rewrites import (
    biases_in_gemms,
    gelu_tables,
    merged_products,
)
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.processors import has_int8_acceleration
from bertender.core.progress import show_progress, track
from bertender.measure.accuracy import evaluate
from bertender.measure.fresh import TimedModel, measure_models
from bertender.measure.latency import LatencyConfig, LatencyReport, threads_of
from bertender.metrics.scores import Score
from bertender.models.graph_optimizer import RUNTIME_DOMAIN
from bertender.models.onnx_predictor import OnnxPredictor
from bertender.models.onnx_session import open_session
from bertender.models.opening import onnx_file, open_classifier
from bertender.pipeline.recorded_task import recorded_task
from bertender.tasks.task import Task
from bertender.text.batch import Batch, Tokenize, load_tokenizer
from export.onnx_export import ExportConfig, export
from quantize.quantizer import QuantizeConfig, quantize

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
    rewrite: Callable[[onnx.ModelProto], onnx.ModelProto] | None = None
    """Rewrites the source graph: the export (before dynamic quantization), or bertender's graph."""


GRAPHS: Mapping[str, Graph] = {
    "float32": Graph("none", "float32", "float32"),
    "float32 basic": Graph("basic", "float32", "float32"),
    "float32 fused": Graph("fused", "float32", "float32"),
    "int8": Graph("none", "int8", "int8"),
    "int8 fused": Graph("fused", "int8", "int8"),
    "int8 all optimizers": Graph("none", "int8", "int8", left_out=()),
    "int8 fused attention": Graph("none", "int8 fused attention", "int8"),
    "int8 merged products": Graph("none", "int8", "int8", rewrite=merged_products),
    "static": Graph("none", "static", "static"),
    "static, bias in Gemm": Graph("none", "static", "static", rewrite=biases_in_gemms),
    "static, GELU by table": Graph("none", "static", "static", rewrite=gelu_tables),
}


BY_BERTENDER: Mapping[str, Mapping[str, Any]] = {
    "static": {"scheme": "static"},
    "int8 fused attention": {"scheme": "dynamic", "fused_attention": True},
}
"""Precisions of GRAPHS that `bertender quantize` makes of the plain export, behind its gates."""


class FusionBenchmark(Record):
    """Every row of GRAPHS, timed at three shapes, and under what."""

    task: str
    teacher_layers: int
    fused: dict[str, dict[str, int]] = Field(
        description="row -> ONNX Runtime's own operators that it has as it is written"
    )
    skip_layer_norms: dict[str, int] = Field(
        description="row -> nodes of SkipLayerNormalization in the graph that really runs"
    )
    scores: dict[str, Score] = Field(description="row -> score on the held-out texts")
    environment: Environment
    natural: LatencyReport = Field(description="single texts at their length, batches of mixed")
    long: LatencyReport = Field(description="single texts of LONG_TOKENS tokens")
    profiles: dict[str, KernelTimes] = Field(
        description="row -> ONNX Runtime's profile of one text of LONG_TOKENS tokens"
    )


def compare_graphs(
    teacher: Artifact, task: Task, config: LatencyConfig, work: Path
) -> FusionBenchmark:
    """Export, quantize, score and time; `work` gets the graphs."""
    exports = {
        optimize: export(teacher, task, ExportConfig(optimize=optimize), work / optimize)
        for optimize in ("none", "basic", "fused")
    }
    quantized = {
        name: quantize(exports["none"], task, QuantizeConfig.parse(settings), work / name)
        for name, settings in BY_BERTENDER.items()
    }
    places = {name: work / f"{name.replace(', ', '-').replace(' ', '-')}.onnx" for name in GRAPHS}
    graphs = {}
    for name, row in GRAPHS.items():
        source = onnx_file(quantized.get(row.precision) or exports[row.optimize])
        graphs[name] = _as_it_runs(row, _written(row, source, places[name]), places[name])
    encode = Tokenize(load_tokenizer(teacher.path), LONG_TOKENS)
    texts = long_texts(task.dev.examples, encode, LONG_TEXTS)
    alone = config.model_copy(update={"batch_size": 1})
    models = _timed_models(graphs, teacher)
    profiles = _profiles(graphs, encode(texts[:1]), config)
    natural = measure_models(models, task.dev.examples, config)
    long = measure_models(models, texts, alone, max_length=LONG_TOKENS)
    return FusionBenchmark(
        task=task.name,
        teacher_layers=_layers(exports["none"]),
        fused={name: _fused(graph) for name, graph in graphs.items()},
        skip_layer_norms={name: _skip_layer_norms(graph) for name, graph in graphs.items()},
        scores={name: _score(exports["none"], graph, task) for name, graph in graphs.items()},
        environment=environment(),
        natural=natural,
        long=long,
        profiles=profiles,
    )


def _profiles(
    graphs: Mapping[str, Path], batch: Batch, config: LatencyConfig
) -> dict[str, KernelTimes]:
    return {
        name: kernel_times(graph, batch, threads_of(config), config.noisy)
        for name, graph in track(graphs.items(), "profile", len(graphs))
    }


def _score(exported: Artifact, graph: Path, task: Task) -> Score:
    classifier = replace(open_classifier(exported), predictor=OnnxPredictor(graph))
    return evaluate(classifier, task.dev, task.metric)[0]


def _layers(exported: Artifact) -> int:
    findings = exported.card.findings.graph
    assert findings is not None, "what is exported has them"
    return findings.layers


def _fused(graph: Path) -> dict[str, int]:
    """Count ONNX Runtime's own operators in a graph as it is written."""
    nodes = onnx.load(graph, load_external_data=False).graph.node
    own = Counter(node.op_type for node in nodes if node.domain == RUNTIME_DOMAIN)
    return dict(sorted(own.items()))


def _skip_layer_norms(graph: Path) -> int:
    with TemporaryDirectory() as folder:
        optimized = Path(folder) / "model.onnx"
        open_session(graph, optimized=optimized)
        nodes = onnx.load(optimized, load_external_data=False).graph.node
    return sum(node.op_type == "SkipLayerNormalization" for node in nodes)


def _written(row: Graph, source: Path, place: Path) -> Path:
    """Return the graph of a row, made of its export or of the static graph."""
    if row.rewrite is not None:
        rewritten = place.with_name(f"{place.stem}-rewritten.onnx")
        onnx.save(row.rewrite(onnx.load(source)), rewritten)
        source = rewritten
    if row.precision != "int8":
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


def _as_it_runs(row: Graph, graph: Path, place: Path) -> Path:
    """Return a graph, or what ONNX Runtime makes of it without the row's optimizers."""
    if row.left_out is None:
        return graph
    optimized = place.with_name(f"{place.stem}-optimized.onnx")
    open_session(graph, optimized=optimized, left_out=row.left_out)
    return optimized


def _timed_models(graphs: Mapping[str, Path], teacher: Artifact) -> list[TimedModel]:
    return [
        TimedModel(name=name, artifact=teacher.path.resolve(), graph=path.resolve())
        for name, path in graphs.items()
    ]


def run(
    teacher: Annotated[Path, typer.Argument(help="torch artifact to export")],
    work: Annotated[Path, typer.Option(help="a folder for the graphs")],
    out: OptionalOutFile = None,
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
