"""Sends the same request by `bertender loadtest`'s generator and by another program, in turns.

    python -m benchmarks.foreign_load ARTIFACT --out FILE.json [--task sst2] [--rounds 5]

The other program is `hey` (github.com/rakyll/hey), an HTTP load generator in Go. Both keep so many
clients that each wait for their response, over HTTP, with one prepared body. What they report of
one server should be equal; where it is not, one of them measures itself.
"""

from __future__ import annotations

import asyncio
import csv
import io
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
import typer
from pydantic import Field

from benchmarks.common.options import HeldOutTaskOption, OutFile, PinFlag, ServedArtifactArgument
from benchmarks.common.pinning import NOT_PINNED, PINNED, Pins, pinned
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving.clients import TritonClient
from benchmarks.serving.prepared import check_servable, prepared_texts
from benchmarks.serving.systems import PORTS
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.core.progress import progress_bar, show_progress
from bertender.measure.load import LoadMeter, check_load, check_load_now
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.loadtest.config import LoadConfig
from serve.loadtest.generator import closed_run
from serve.loadtest.loops import precise_loop
from serve.loadtest.records import LoadRun, Outcome
from serve.loadtest.senders import Request
from serve.server import TritonServer, serving

__all__ = [
    "FOREIGN",
    "GENERATORS",
    "OWN",
    "SIZES",
    "ForeignLoad",
    "ForeignLoadConfig",
    "GeneratorRun",
    "measure_generators",
    "run",
]

OWN, FOREIGN = "bertender", "hey"
PROGRAM = "hey"
SIZES = (1, 16)
"""Texts of the request."""


class ForeignLoadConfig(Record):
    """How it is measured."""

    rounds: int = 5
    duration_s: float = Field(4.0, description="of each generator in a round")
    clients: int = 8
    pins: Pins = NOT_PINNED
    noisy: bool = False


class GeneratorRun(Record):
    """What a generator reports of a server."""

    generator: str
    texts_per_request: int
    requests_per_second: float = Field(description="responses within the time")
    p50_ms: float
    p99_ms: float
    errors: int = Field(description="responses other than 200; hey lists no others")


class ForeignLoad(Record):
    """Every figure, and its conditions."""

    task: str
    name: str
    digest: str
    config: ForeignLoadConfig
    runs: tuple[GeneratorRun, ...] = Field(description="in the order of the rounds")
    load: MachineLoad
    environment: Environment

    def of(self, generator: str, size: int) -> list[GeneratorRun]:
        """Return the runs of a generator with so many texts a request, in the order of rounds."""
        place = (generator, size)
        return [each for each in self.runs if (each.generator, each.texts_per_request) == place]


def measure_generators(
    artifact: Artifact, texts: Sequence[str], config: ForeignLoadConfig
) -> ForeignLoad:
    """Measure one server by both generators.

    Raises:
        ModelError: the artifact is not an ONNX classifier of single texts.
        LoadTestError: the other program is not installed, or fails.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
    """
    check_servable(artifact)
    if shutil.which(PROGRAM) is None:
        raise LoadTestError(f"{PROGRAM} is not installed. On Debian: apt-get install {PROGRAM}")
    config.pins.check()
    if not config.noisy:
        check_load_now()
    own = prepared_texts(artifact, texts)["natural"].texts
    draw, runs = np.random.default_rng(0), []
    rows = {size: draw.integers(0, len(own), size).tolist() for size in SIZES}
    with _served(artifact, config) as server, progress_bar("load", total=config.rounds) as bar:
        requests = {
            size: _prepared(server, [own[row] for row in drawn]) for size, drawn in rows.items()
        }
        meter = LoadMeter()
        for _ in range(config.rounds):
            for size, request in requests.items():
                for generator in draw.permutation([*GENERATORS]):
                    runs.append(_run_of(str(generator), server, size, request, config))
            bar.advance()
        load = meter.stop()  # while the server is there: its time is not other work
    check_load(load, config.noisy)
    return ForeignLoad(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        config=config,
        runs=tuple(runs),
        load=load,
        environment=environment(),
    )


@dataclass(frozen=True)
class _Figures:
    """Of a generator."""

    requests_per_second: float
    latency_ms: npt.NDArray[np.float64]
    """(requests,) of those that are answered by 200."""
    errors: int


@contextmanager
def _served(artifact: Artifact, config: ForeignLoadConfig) -> Iterator[TritonServer]:
    """Serve the artifact on the server's core."""
    with ExitStack() as stack:
        with pinned(config.pins.server):
            server = stack.enter_context(serving(artifact, PORTS))
        yield server


def _prepared(server: TritonServer, texts: Sequence[str]) -> Request:
    async def prepare() -> Request:
        client = TritonClient(server.http_url)
        try:
            return client.prepare(texts)
        finally:
            await client.close()

    return asyncio.run(prepare())


def _own(server: TritonServer, request: Request, config: ForeignLoadConfig) -> _Figures:
    async def ask() -> LoadRun:
        client = TritonClient(server.http_url)

        async def send(number: int) -> Outcome:
            return await client.send(request)

        settings = LoadConfig(duration_s=config.duration_s, warmup_s=0.0)
        try:
            return await closed_run(send, config.clients, settings)
        finally:
            await client.close()

    with asyncio.Runner(loop_factory=precise_loop) as runner:
        run = runner.run(ask())
    ok = np.array([outcome == "ok" for outcome in run.outcome])
    latency_ms = np.array(run.latency_ms)[ok]
    return _Figures(run.requests_per_second, latency_ms, len(ok) - len(latency_ms))


def _hey(server: TritonServer, request: Request, config: ForeignLoadConfig) -> _Figures:
    with tempfile.NamedTemporaryFile() as body:
        body.write(request.body)
        body.flush()
        headers = [f"{name}: {value}" for name, value in request.headers.items()]
        command = [
            *(PROGRAM, "-z", f"{config.duration_s:g}s", "-c", str(config.clients), "-o", "csv"),
            *("-m", "POST", "-T", "application/octet-stream", "-D", body.name),
            *(word for header in headers for word in ("-H", header)),
            f"{server.http_url}/v2/models/{request.model}/infer",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
    rows = [*csv.DictReader(io.StringIO(done.stdout))]
    if done.returncode or not rows:
        raise LoadTestError(f"{PROGRAM} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    ok = [
        (float(row["offset"]), float(row["response-time"]))
        for row in rows
        if row["status-code"] == "200"
    ]
    within = sum(sent_s + took_s <= config.duration_s for sent_s, took_s in ok)
    latency_ms = np.array([1000 * took_s for _, took_s in ok])
    return _Figures(within / config.duration_s, latency_ms, len(rows) - len(ok))


GENERATORS: Mapping[str, Callable[[TritonServer, Request, ForeignLoadConfig], _Figures]] = {
    OWN: _own,
    FOREIGN: _hey,
}
"""By their names: (server, request, config) -> what it reports."""


def _run_of(
    generator: str, server: TritonServer, size: int, request: Request, config: ForeignLoadConfig
) -> GeneratorRun:
    """Send the request from the generator's core for a while."""
    with pinned(config.pins.generator):
        figures = GENERATORS[generator](server, request, config)
    if not len(figures.latency_ms):
        raise LoadTestError(f"{generator}: none of {figures.errors} responses is a 200.")
    p50, p99 = np.percentile(figures.latency_ms, (50, 99)).tolist()
    return GeneratorRun(
        generator=generator,
        texts_per_request=size,
        requests_per_second=figures.requests_per_second,
        p50_ms=p50,
        p99_ms=p99,
        errors=figures.errors,
    )


def run(
    artifact: ServedArtifactArgument,
    out: OutFile,
    task: HeldOutTaskOption = "sst2",
    rounds: Annotated[int, typer.Option(min=3, max=20, help="turns of each generator")] = 5,
    duration_s: Annotated[float, typer.Option(help="seconds of each turn")] = 4.0,
    clients: Annotated[int, typer.Option(min=1, help="that each wait for their response")] = 8,
    pin: PinFlag = True,
    noisy: NoisyFlag = False,
) -> None:
    """Compare the load generator with a foreign one."""
    show_progress()
    check_noisy_out(noisy, out)
    config = ForeignLoadConfig(
        rounds=rounds,
        duration_s=duration_s,
        clients=clients,
        pins=PINNED if pin else NOT_PINNED,
        noisy=noisy,
    )
    texts = [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]
    result = measure_generators(Artifact.load(artifact), texts, config)
    for each in result.runs:
        typer.echo(
            f"{each.generator}, {each.texts_per_request} a request: "
            f"{each.requests_per_second:.4g} requests/s, p50 {each.p50_ms:.2f} ms"
        )
    save_benchmark(result, out)
