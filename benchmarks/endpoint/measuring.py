"""Times a served model next to the same model in process.

    python -m benchmarks.endpoint ARTIFACT... --out FILE.json [--rounds 30] [--starts 3]

Each ONNX artifact is served by the real Triton on free loopback ports and asked over HTTP and over
gRPC, interleaved with the same file opened in this process: the same texts, the same threads. A
request holds one text, or 16. Every start is a new server and a newly opened model, so that the
intervals hold what differs from one process to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer
from pydantic import Field

from benchmarks.common.options import OnnxArtifactArguments, OutFile
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.progress import show_progress
from bertender.measure.latency import LatencyConfig, LatencyReport, measure_latency, threads_of
from bertender.models.opening import open_classifier
from bertender.models.predictor import Classifier
from bertender.pipeline.recorded_task import recorded_task
from bertender.text.batch import keep_text
from bertender.text.example import Example
from serve.check import EndpointConfig, check_endpoint
from serve.client import Endpoint, ServedPredictor
from serve.config import ServeConfig
from serve.server import serving

__all__ = ["IN_PROCESS", "WAYS", "EndpointBenchmark", "ServedModel", "run", "time_endpoints"]

IN_PROCESS = "in process"
WAYS = (IN_PROCESS, "HTTP", "gRPC")
"""How a model is asked, in the order of the rows of each report."""

TEXTS_A_REQUEST = 16
CHECKED_TEXTS = 16


class ServedModel(Record):
    """One artifact's times: a report for each start, with a row for each of WAYS."""

    name: str
    digest: str
    precision: str
    parameters: int
    max_abs_difference: float = Field(description="of a logit, served against in process")
    starts: tuple[LatencyReport, ...]


class EndpointBenchmark(Record):
    """Every artifact's times, and under what they were measured."""

    task: str
    environment: Environment
    models: tuple[ServedModel, ...]


def time_endpoints(
    artifacts: Sequence[Artifact], examples: Sequence[Example], config: LatencyConfig, starts: int
) -> EndpointBenchmark:
    """Serve and time each artifact `starts` times, in turns.

    Raises:
        ServingError: a server does not start, or its predictions differ from the model in process.
        ModelError: an artifact is not an ONNX classifier.
        MachineBusyError: work besides this process and the server disturbs the times, and the
            config does not allow noisy ones.
    """
    asked = EndpointConfig(texts=CHECKED_TEXTS, seed=config.seed)
    checks = [check_endpoint(artifact, examples, asked) for artifact in artifacts]
    reports: list[list[LatencyReport]] = [[] for _ in artifacts]
    for start in range(starts):
        # other texts in each start; the same ones for every artifact
        drawn = config.model_copy(update={"seed": config.seed + start})
        for artifact, taken in zip(artifacts, reports, strict=True):
            with _asked_in_all_ways(artifact, threads_of(drawn)) as classifiers:
                taken.append(measure_latency(classifiers, examples, drawn))
    models = [
        ServedModel(
            name=artifact.name,
            digest=artifact.digest,
            precision=artifact.card.precision,
            parameters=artifact.card.findings.parameters,
            max_abs_difference=check.max_abs_difference,
            starts=tuple(taken),
        )
        for artifact, check, taken in zip(artifacts, checks, reports, strict=True)
    ]
    return EndpointBenchmark(
        task=artifacts[0].card.task.name,
        environment=environment(),
        models=tuple(models),
    )


@contextmanager
def _asked_in_all_ways(artifact: Artifact, threads: int) -> Iterator[list[Classifier]]:
    """Open the model in process and behind a server, as classifiers in the order of WAYS."""
    config = ServeConfig(http_port=0, grpc_port=0, metrics_port=0, threads_per_instance=threads)
    local = open_classifier(artifact, threads=threads)
    with ExitStack() as stack:
        server = stack.enter_context(serving(artifact, config))
        classifiers = [Classifier(IN_PROCESS, local.labels, local.encode, local.predictor, 0)]
        for way, url in zip(WAYS[1:], (server.http_url, server.grpc_url), strict=True):
            endpoint = stack.enter_context(Endpoint(url))
            predictor = ServedPredictor(endpoint)
            classifiers.append(Classifier(way, local.labels, keep_text, predictor, 0))
        yield classifiers


def run(
    artifacts: OnnxArtifactArguments,
    out: OutFile,
    rounds: Annotated[int, typer.Option(help="timed rounds of each start")] = 30,
    single_texts: Annotated[int, typer.Option(help="texts of a round, one a request")] = 30,
    starts: Annotated[int, typer.Option(min=1, help="servers of each artifact")] = 3,
    threads: Annotated[int, typer.Option(help="of ONNX Runtime, either way; 0: every core")] = 0,
    max_dev: Annotated[int | None, typer.Option(help="use only so many held-out texts")] = None,
    seed: Annotated[int, typer.Option(help="which texts are drawn")] = 0,
    noisy: NoisyFlag = False,
) -> None:
    """Time endpoints next to the same models in process."""
    show_progress()
    check_noisy_out(noisy, out)
    opened = [Artifact.load(path) for path in artifacts]
    task = recorded_task(opened[0], {} if max_dev is None else {"max_dev": max_dev})
    config = LatencyConfig(
        processes=1,  # of each start
        rounds=rounds,
        single_texts=single_texts,
        batch_size=TEXTS_A_REQUEST,
        threads=threads,
        seed=seed,
        noisy=noisy,
    )
    result = time_endpoints(opened, task.dev.examples, config, starts)
    for model in result.models:
        rows = zip(*(report.rows for report in model.starts), strict=True)
        for taken in rows:
            singles = ", ".join(f"{row.single.p50_ms:.2f}" for row in taken)
            batches = ", ".join(f"{row.batch.p50_ms:.2f}" for row in taken)
            typer.echo(f"{model.name}, {taken[0].name}: {singles} ms; 16 texts {batches} ms")
    save_benchmark(result, out)
