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
from pathlib import Path
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from pydantic import Field

from benchmarks.pinning import NOT_PINNED, Pins
from benchmarks.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving import PreparedTexts, prepared_texts
from benchmarks.serving_loads import StartedSystem, started
from benchmarks.serving_records import ServingConfig
from benchmarks.serving_systems import System
from benchmarks.watched_server import WatchedServer
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.core.progress import progress_bar, show_progress
from bertender.measure.load import LoadMeter, busiest, check_load, check_load_now
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.config import ServeConfig
from serve.loadtest.limit import FIRST_RATE
from serve.loadtest.records import Limit, LoadRun, Outcome
from serve.server import serving

__all__ = ["MemorySample", "Overload", "Segment", "SoakBenchmark", "SoakConfig", "run", "soak"]


TIMEOUT_SHARE = 0.4
"""Of the p99 that must hold: how long a request may wait in the queue."""


class SoakConfig(Record):
    """How it is measured."""

    limit: float | None = Field(None, description="requests a second; None: it is looked for")
    minutes: float = 10.0
    segment_s: float = Field(20.0, description="of requests between two readings of memory")
    share: float = Field(0.8, description="of the limit, for minutes")
    overload: float = Field(2.0, description="times the limit, after that")
    overload_s: float = 20.0
    queue_timeout_ms: float
    measured: ServingConfig = Field(description="of the limit, its p99, and the cores")


class MemorySample(Record):
    """Resident memory of the server's processes."""

    at_s: float = Field(description="from the first request of the soak on")
    bytes_of: dict[str, int] = Field(description="server, stub and supervisor")

    @property
    def total(self) -> int:
        return sum(self.bytes_of.values())


class Segment(Record):
    """Requests of the soak between two readings of memory."""

    p50_ms: float | None
    p99_ms: float | None = Field(description="of all; None where more than 1 % have no response")
    outcomes: dict[Outcome, int]
    lag_share: float = Field(description="how late requests were sent, over the median latency")


class Overload(Record):
    """Requests beyond the limit."""

    rate: float
    duration_s: float
    outcomes: dict[Outcome, int]
    within_slo: int = Field(description="requests with a response within the p99 that must hold")
    lag_share: float
    p50_ms: float | None = Field(None, description="of the responses")
    rejected_p50_ms: float | None = Field(None, description="how long a rejection took")
    rejected_p99_ms: float | None = None
    memory: MemorySample | None = Field(None, description="right after it")

    @property
    def goodput(self) -> float:
        """Responses a second within the p99 that must hold."""
        return self.within_slo / self.duration_s


class SoakBenchmark(Record):
    """A soak, and its conditions."""

    task: str
    name: str
    digest: str
    precision: str
    config: SoakConfig
    limit: Limit
    rate: float = Field(description="requests a second of the soak")
    memory: tuple[MemorySample, ...]
    segments: tuple[Segment, ...]
    overload: Overload
    default_overload: Overload | None = Field(None, description="of a server of default settings")
    load: MachineLoad
    environment: Environment

    @property
    def growth(self) -> float:
        """Growth of the memory from the second fifth of the soak to the last, as a share.

        The first fifth is left out: runtimes reserve memory at sizes that they see first then.
        """
        part = max(1, len(self.memory) // 5)
        return _median_total(self.memory[-part:]) / _median_total(self.memory[part : 2 * part]) - 1

    @property
    def goodput_share(self) -> float:
        """Goodput beyond the limit, as a share of the limit."""
        return self.overload.goodput / self.limit.rate

    @property
    def overload_growth(self) -> float | None:
        """Growth of the memory from the end of the soak to that of the overload, as a share."""
        after = self.overload.memory
        return None if after is None else after.total / self.memory[-1].total - 1


def _median_total(samples: tuple[MemorySample, ...]) -> float:
    totals = sorted(each.total for each in samples)
    return totals[len(totals) // 2]


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
        limit = _limit(asked, config)
        memory, segments = _soaked(asked, server, config.share * limit.rate, config)
        overload = _overloaded(asked, server, limit, config)
        load = meter.stop()
    check_load(load, config.measured.noisy)
    default = _server()
    with _asked(default, artifact, natural, config) as asked:
        meter = LoadMeter()
        default_overload = _overloaded(asked, default, limit, config)
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


def _limit(asked: StartedSystem, config: SoakConfig) -> Limit:
    """Return the limit that is known, or look for it."""
    slo_p99_ms = config.measured.slo_p99_ms
    if config.limit is not None:
        known = "it was known, and not looked for"
        return Limit(slo_p99_ms=slo_p99_ms, rate=config.limit, above=None, lower_bound=known)
    limit, reason = asked.limit(slo_p99_ms, FIRST_RATE)
    if limit is None:
        raise LoadTestError(f"nothing to soak: {reason}")
    return limit


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
    artifact: Annotated[Path, typer.Argument(help="ONNX artifact of a task on single texts")],
    out: Annotated[Path, typer.Option(help="the JSON to write")],
    task: Annotated[str, typer.Option(help="its held-out texts are sent")] = "sst2",
    limit: Annotated[
        float | None, typer.Option(help="requests/s, where known; by default it is looked for")
    ] = None,
    minutes: Annotated[float, typer.Option(help="at 80 % of the limit")] = 10.0,
    slo_p99_ms: Annotated[float, typer.Option(help="p99 that must hold, in milliseconds")] = 50.0,
    queue_timeout_ms: Annotated[
        float | None, typer.Option(help="of the server; by default two fifths of the p99")
    ] = None,
    pin: Annotated[bool, typer.Option(help="server on core 0, generator on core 1")] = True,
    noisy: NoisyFlag = False,
) -> None:
    """Serve a model near its limit for minutes, and then beyond it."""
    show_progress()
    check_noisy_out(noisy, out)
    pins = Pins(server=0, generator=1) if pin else NOT_PINNED
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


if __name__ == "__main__":
    typer.run(run)
