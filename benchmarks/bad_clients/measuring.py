"""Sends good requests at a rate, alone and while a bad client of each kind acts, in turns.

    python -m benchmarks.bad_clients ARTIFACT --out FILE.json [--limit N]

The good requests come at 40 % of the highest rate that holds a p99, in an open loop, over HTTP as
the bad ones do: they share the threads of the server that read it. In every round each row of KINDS
has a turn, in an order that is drawn: good requests alone, and the same ones at the same times
while one client of that kind sends a bad request a few times a second, or some hold connections.
The bad clients are a process of their own, on the generator's core, so that they take no time of
the server's. Triton's memory is read before and after them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import urlsplit

import numpy as np
import typer
from pydantic import Field

from benchmarks.bad_clients.kinds import KINDS, Target
from benchmarks.bad_clients.process import MODULE, begin_turn, end_turn
from benchmarks.common.options import (
    HeldOutTaskOption,
    LimitOption,
    OutFile,
    PinFlag,
    ServedArtifactArgument,
    SloOption,
)
from benchmarks.common.pinning import NOT_PINNED, PINNED, pinned
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving.clients import TritonClient
from benchmarks.serving.loads import StartedSystem
from benchmarks.serving.prepared import check_servable, prepared_texts
from benchmarks.serving.records import ServingConfig
from benchmarks.serving.systems import PORTS
from benchmarks.serving.watched_server import SERVER, memory_of
from bertender.comparison.latency import LineProcess, line_process
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.machine import Environment, Speedup, environment
from bertender.core.machine_load import LoadMeter, MachineLoad, check_load, check_load_now
from bertender.core.progress import progress_bar, show_progress
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.client.access import NO_ACCESS, AccessConfig, open_access, parse_url
from serve.loadtest import Limit, LoadRun, Outcome
from serve.server.server import TritonServer, serving
from serve.tuning import ratio_over_rounds

__all__ = [
    "BadClients",
    "BadClientsConfig",
    "BadClientsTurn",
    "GoodTraffic",
    "measure_bad_clients",
    "run",
]


class BadClientsConfig(Record):
    """How it is measured."""

    limit: float | None = Field(None, description="requests a second; None: it is looked for")
    share: float = Field(0.4, description="of the limit: good requests")
    kinds: tuple[str, ...] = Field(tuple(KINDS), description="rows of KINDS")
    rounds: int = 5
    seconds: float = Field(1.8, description="of good requests alone, and again of both, a turn")
    pause_s: float = Field(0.3, description="of a bad client from a response to its next request")
    measured: ServingConfig = Field(description="of the limit, its p99, and the cores")


class GoodTraffic(Record):
    """Good requests of a part of a turn."""

    p50_ms: float | None = Field(description="of requests with a response; None where none has")
    p99_ms: float | None = Field(description="of all; None where more than 1 % have no response")
    outcomes: dict[Outcome, int]
    lag_share: float = Field(description="how late requests were sent, over the median latency")

    @classmethod
    def of_run(cls, run: LoadRun) -> GoodTraffic:
        return cls(
            p50_ms=run.latency.p50_ms if run.latency else None,
            p99_ms=run.p99_ms,
            outcomes=run.outcomes,
            lag_share=min(run.lag_share, 1.0),
        )


class BadClientsTurn(Record):
    """Good requests without and with clients of one kind."""

    grown_bytes: int = Field(description="resident memory of Triton, after them over before")

    kind: str = Field(description="a row of KINDS")
    round: int
    alone: GoodTraffic
    meanwhile: GoodTraffic
    responses: dict[str, int] = Field(
        description="of the bad clients: status, or state of a connection at the end -> how many"
    )


class BadClients(Record):
    """Every figure, and its conditions."""

    task: str
    name: str
    digest: str
    precision: str
    config: BadClientsConfig
    limit: Limit
    rate: float = Field(description="good requests a second")
    turns: tuple[BadClientsTurn, ...] = Field(description="in the order in which they were taken")
    load: MachineLoad
    environment: Environment

    def of(self, kind: str) -> list[BadClientsTurn]:
        """Return the turns of a kind, in the order of the rounds."""
        return [each for each in self.turns if each.kind == kind]

    def ratio(self, kind: str) -> Speedup | None:
        """Return the p99 with clients of a kind over that without, within turns.

        None where a turn has no p99, since more than 1 % of its good requests have no response.
        """
        pairs = [(each.alone.p99_ms, each.meanwhile.p99_ms) for each in self.of(kind)]
        known = [(alone, both) for alone, both in pairs if alone is not None and both is not None]
        if len(known) < len(pairs):
            return None
        return ratio_over_rounds([alone for alone, _ in known], [both for _, both in known])


def measure_bad_clients(
    artifact: Artifact, texts: Sequence[str], config: BadClientsConfig
) -> BadClients:
    """Measure good requests without and with each kind of bad clients, on one server.

    Raises:
        ModelError: the artifact is not an ONNX classifier of single texts.
        LoadTestError: no rate holds the p99.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
    """
    check_servable(artifact)
    config.measured.pins.check()
    if not config.measured.noisy:
        check_load_now()
    own = prepared_texts(artifact, texts)["natural"].texts
    with _served(artifact, config) as served:
        asked = StartedSystem(served.open_client, own, config.measured)
        meter = LoadMeter()
        slo_p99_ms = config.measured.slo_p99_ms
        limit = asked.known_limit(config.limit, slo_p99_ms, "no rate for good requests")
        rate = config.share * limit.rate
        turns = _turns(asked, served, rate, config)
        load = meter.stop()  # while the server is there: its time is not other work
    check_load(load, config.measured.noisy)
    return BadClients(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        precision=artifact.card.precision,
        config=config,
        limit=limit,
        rate=rate,
        turns=tuple(turns),
        load=load,
        environment=environment(),
    )


@dataclass(frozen=True)
class _Served:
    """A server, what it takes to reach it, and the process of bad clients."""

    server: TritonServer
    url: str
    access: AccessConfig
    clients: LineProcess

    def open_client(self) -> TritonClient:
        """Return what sends good requests."""
        return TritonClient(self.url, self.access)

    def target(self, pause_s: float) -> Target:
        """Return what bad clients are sent to."""
        place = urlsplit(self.url)
        assert place.hostname is not None and place.port is not None
        return Target(
            host=place.hostname,
            port=place.port,
            pause_s=pause_s,
            ca_file=self.access.ca_file,
            headers=open_access(parse_url(self.url), self.access).headers,
        )

    @property
    def triton_bytes(self) -> int:
        """Resident memory of Triton."""
        return memory_of(self.server)[SERVER]


@contextmanager
def _served(artifact: Artifact, config: BadClientsConfig) -> Iterator[_Served]:
    """Serve the artifact on the server's core; bad clients are on the generator's."""
    generator = config.measured.pins.generator
    with ExitStack() as stack:
        with pinned(config.measured.pins.server):
            server = stack.enter_context(serving(artifact, PORTS))
        url, access = server.http_url, NO_ACCESS
        with pinned(generator):
            clients = stack.enter_context(line_process(MODULE, "the process of bad clients"))
        yield _Served(server, url, access, clients)


def _turns(
    asked: StartedSystem, served: _Served, rate: float, config: BadClientsConfig
) -> list[BadClientsTurn]:
    draw, turns = np.random.default_rng(config.measured.seed), []
    target = served.target(config.pause_s)
    with progress_bar("bad clients", total=config.rounds * len(config.kinds)) as bar:
        for number in range(config.rounds):
            for kind in map(str, draw.permutation(config.kinds)):
                bar.note(f"round {number + 1}: {kind}")
                alone = asked.at_rate(rate, config.seconds)
                before = served.triton_bytes
                begin_turn(served.clients, kind, target)
                meanwhile = asked.at_rate(rate, config.seconds)
                turns.append(
                    BadClientsTurn(
                        kind=kind,
                        round=number,
                        alone=GoodTraffic.of_run(alone),
                        meanwhile=GoodTraffic.of_run(meanwhile),
                        responses=end_turn(served.clients),
                        grown_bytes=served.triton_bytes - before,
                    )
                )
                bar.advance()
    return turns


def run(
    artifact: ServedArtifactArgument,
    out: OutFile,
    task: HeldOutTaskOption = "sst2",
    limit: LimitOption = None,
    rounds: Annotated[int, typer.Option(min=3, max=10, help="turns of each kind")] = 5,
    seconds: Annotated[float, typer.Option(help="alone, and again with bad clients")] = 1.8,
    slo_p99_ms: SloOption = 50.0,
    pin: PinFlag = True,
    noisy: NoisyFlag = False,
) -> None:
    """Measure good requests while bad clients act."""
    show_progress()
    check_noisy_out(noisy, out)
    pins = PINNED if pin else NOT_PINNED
    config = BadClientsConfig(
        limit=limit,
        rounds=rounds,
        seconds=seconds,
        measured=ServingConfig(warmup_s=0.2, slo_p99_ms=slo_p99_ms, pins=pins, noisy=noisy),
    )
    texts = [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]
    result = measure_bad_clients(Artifact.load(artifact), texts, config)
    typer.echo(f"limit {result.limit.rate:.4g} requests/s; good requests at {result.rate:.4g}")
    for kind in result.config.kinds:
        typer.echo(f"{kind}: p99 {result.ratio(kind) or 'unknown'}")
    save_benchmark(result, out)
