"""Serves a model near its limit for minutes, and then beyond it.

    python -m benchmarks.soak ARTIFACT --out FILE.json [--task sst2] [--minutes 10]

The highest rate that holds a p99 is looked for first. At 80 % of it, requests come for minutes, and
the resident memory of the server's processes is read after every segment. Then they come at twice
the limit: goodput is what gets a response within the p99 that must hold. So that requests do not
wait for longer than that, the queue has a timeout of two fifths of it (`--queue-timeout-ms`): a
batch takes as long again, and Triton a little. At last a server of the default settings gets twice
the limit too: its queue is bounded by texts, so that all who are let in wait for about as long.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer

from benchmarks.common.options import (
    HeldOutTaskOption,
    LimitOption,
    OutFile,
    PinFlag,
    ServedArtifactArgument,
    SloOption,
)
from benchmarks.common.pinning import NOT_PINNED, PINNED
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving.loads import StartedSystem, started
from benchmarks.serving.prepared import PreparedTexts, prepared_texts
from benchmarks.serving.records import ServingConfig
from benchmarks.serving.systems import System
from benchmarks.serving.watched_server import WatchedServer
from benchmarks.soak.records import MemorySample, Overload, Segment, SoakBenchmark, SoakConfig
from bertender.core.artifact import Artifact
from bertender.core.machine import environment
from bertender.core.machine_load import LoadMeter, busiest, check_load, check_load_now
from bertender.core.progress import progress_bar, show_progress
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.config import ServeConfig
from serve.loadtest import Limit, LoadRun
from serve.server.server import serving

__all__ = ["run", "soak"]


TIMEOUT_SHARE = 0.4
"""Of the p99 that must hold: how long a request may wait in the queue."""


def soak(artifact: Artifact, texts: list[str], config: SoakConfig) -> SoakBenchmark:
    """Look for the limit, soak below it, and overload beyond it, on one server.

    Raises:
        LoadTestError: no rate holds the p99.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
    """
    config.measured.pins.check()
    if not config.measured.noisy:
        check_load_now()
    natural = prepared_texts(artifact, texts)["natural"]
    server = _server(config.queue_timeout_ms)
    with _asked(server, artifact, natural, config) as asked:
        meter = LoadMeter()
        limit = asked.known_limit(config.limit, config.measured.slo_p99_ms, "nothing to soak")
        memory, segments = _soaked(asked, server, config.share * limit.rate, config)
        overload = _overloaded(asked, server, limit, config)
        load = meter.stop()
    check_load(load, config.measured.noisy)
    server = _server()
    with _asked(server, artifact, natural, config) as asked:
        meter = LoadMeter()
        default_overload = _overloaded(asked, server, limit, config)
        default_load = meter.stop()
    check_load(default_load, config.measured.noisy)
    return SoakBenchmark(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        precision=artifact.card.precision,
        config=config,
        limit=limit,
        rate=config.share * limit.rate,
        memory=tuple(memory),
        segments=tuple(segments),
        overload=overload,
        default_overload=default_overload,
        load=busiest([load, default_load]),
        environment=environment(),
    )


def _server(queue_timeout_ms: float | None = None) -> WatchedServer:
    """Return the endpoint, which is not started yet; None for the default timeout."""
    explicit = {} if queue_timeout_ms is None else {"queue_timeout_ms": queue_timeout_ms}
    settings = ServeConfig.parse({"http_port": 0, "grpc_port": 0, "metrics_port": 0, **explicit})
    return WatchedServer(lambda service: serving(service.artifact, settings))


def _asked(
    server: WatchedServer, artifact: Artifact, traffic: PreparedTexts, config: SoakConfig
) -> AbstractContextManager[StartedSystem]:
    """Start the endpoint."""
    system = System("bertender", server.start)
    return started(system, traffic.service(artifact), traffic.texts, config.measured)


def _soaked(
    asked: StartedSystem, server: WatchedServer, rate: float, config: SoakConfig
) -> tuple[list[MemorySample], list[Segment]]:
    memory, segments = [], []
    began = time.monotonic()
    count = max(5, round(60 * config.minutes / config.segment_s))
    with progress_bar("soak", total=count) as bar:
        for _ in range(count):
            segments.append(_segment(asked.at_rate(rate, config.segment_s)))
            memory.append(_memory(server, began))
            bar.note(f"{memory[-1].total / 1e6:.0f} MB")
            bar.advance()
    return memory, segments


def _segment(run: LoadRun) -> Segment:
    return Segment(
        p50_ms=run.latency.p50_ms if run.latency else None,
        p99_ms=run.p99_ms,
        outcomes=run.outcomes,
        lag_share=min(run.lag_share, 1.0),
    )


def _memory(server: WatchedServer, began: float) -> MemorySample:
    return MemorySample(at_s=round(time.monotonic() - began, 1), bytes_of=server.memory())


def _overloaded(
    asked: StartedSystem, server: WatchedServer, limit: Limit, config: SoakConfig
) -> Overload:
    rate, began = config.overload * limit.rate, time.monotonic()
    run = asked.at_rate(rate, config.overload_s)
    outcome, latency_ms = np.array(run.outcome), np.array(run.latency_ms)
    ok, rejected = (latency_ms[outcome == each] for each in ("ok", "rejected"))
    return Overload(
        rate=rate,
        duration_s=config.overload_s,
        outcomes=run.outcomes,
        within_slo=int((ok <= config.measured.slo_p99_ms).sum()),
        lag_share=min(run.lag_share, 1.0),
        p50_ms=_percentile(ok, 50),
        rejected_p50_ms=_percentile(rejected, 50),
        rejected_p99_ms=_percentile(rejected, 99),
        memory=_memory(server, began),
    )


def _percentile(latency_ms: npt.NDArray[np.float64], percent: float) -> float | None:
    """Return a percentile of latencies (requests,); None of none."""
    return round(float(np.percentile(latency_ms, percent)), 3) if latency_ms.size else None


def run(
    artifact: ServedArtifactArgument,
    out: OutFile,
    task: HeldOutTaskOption = "sst2",
    limit: LimitOption = None,
    minutes: Annotated[float, typer.Option(help="at 80 % of the limit")] = 10.0,
    slo_p99_ms: SloOption = 50.0,
    queue_timeout_ms: Annotated[
        float | None, typer.Option(help="of the server; by default two fifths of the p99")
    ] = None,
    pin: PinFlag = True,
    noisy: NoisyFlag = False,
) -> None:
    """Serve a model near its limit for minutes, and then beyond it."""
    show_progress()
    check_noisy_out(noisy, out)
    pins = PINNED if pin else NOT_PINNED
    config = SoakConfig(
        limit=limit,
        minutes=minutes,
        queue_timeout_ms=TIMEOUT_SHARE * slo_p99_ms
        if queue_timeout_ms is None
        else queue_timeout_ms,
        measured=ServingConfig(slo_p99_ms=slo_p99_ms, pins=pins, noisy=noisy),
    )
    texts = [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]
    result = soak(Artifact.load(artifact), texts, config)
    typer.echo(f"limit {result.limit.rate:.4g} requests/s; soak at {result.rate:.4g}")
    typer.echo(f"memory grew by {result.growth:.1%}")
    typer.echo(f"goodput at {result.overload.rate:.4g} requests/s: {result.goodput_share:.1%}")
    save_benchmark(result, out)
