"""Where the time of a request goes: into the model, its Python process, or Triton.

    python -m benchmarks.request_costs ARTIFACT --out FILE.json [--task sst2] [--rounds 5]

An endpoint, and Triton with models that compute nothing (`COSTED`), get requests of a single text
over gRPC, from one caller and from many (`LOADS`). The processor time of the server and of its stub
is read before and after each load. Next to them, the model runs in a process of its own: one call
after another, and with a pause before each, after which the processor's caches and clock are those
of a core that has waited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import typer
from pydantic import Field

from benchmarks.common.options import HeldOutTaskOption, OutFile, PinFlag, ServedArtifactArgument
from benchmarks.common.pinning import NOT_PINNED, PINNED
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving.ceiling import time_in_process
from benchmarks.serving.loads import StartedSystem, started
from benchmarks.serving.prepared import check_servable, prepared_texts
from benchmarks.serving.records import LOADS, ServingConfig
from benchmarks.serving.systems import PORTS, Service, System, temporary_folder, write_python_model
from benchmarks.serving.watched_server import SERVER, STUB, WatchedServer
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.core.progress import progress_bar, show_progress
from bertender.measure.load import LoadMeter, check_load, check_load_now
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.loadtest.slow_servers import texts_per_second
from serve.server import TritonServer, serving
from serve.workspace import Workspace

__all__ = [
    "COSTED",
    "PAUSES_MS",
    "SINGLE_TEXTS",
    "CostVisit",
    "Costed",
    "PausedCalls",
    "RequestCosts",
    "RequestLoad",
    "measure_request_costs",
    "run",
]

SINGLE_TEXTS = tuple(name for name, row in LOADS.items() if row.texts_per_request == 1)
"""Rows of LOADS."""
PAUSES_MS = (0.0, 1.0)
CONSTANT_MODEL = "benchmarks.request_costs.constant_model"


class RequestLoad(Record):
    """Requests of a load."""

    load: str = Field(description="a row of LOADS")
    requests_per_second: float
    p50_ms: float
    processor_ms: dict[str, float] = Field(description="of a request: process -> processor time")


class CostVisit(Record):
    """A system, started once."""

    system: str = Field(description="a row of COSTED")
    round: int
    loads: tuple[RequestLoad, ...]
    load: MachineLoad


class PausedCalls(Record):
    """The model in process, one text a call."""

    round: int
    pause_ms: float
    p50_ms: float
    load: MachineLoad


class RequestCosts(Record):
    """Every figure, and its conditions."""

    task: str
    name: str
    digest: str
    precision: str
    parameters: int
    config: ServingConfig
    visits: tuple[CostVisit, ...]
    calls: tuple[PausedCalls, ...]
    environment: Environment

    def loads(self, system: str, load: str) -> list[RequestLoad]:
        """Return the results of a load on a system, in the order of the rounds."""
        visits = sorted(self.visits, key=lambda each: each.round)
        own = [each for visit in visits if visit.system == system for each in visit.loads]
        return [each for each in own if each.load == load]


@dataclass(frozen=True)
class Costed:
    """A row of COSTED."""

    title: str
    serve: Callable[[Service], AbstractContextManager[TritonServer]]


def _constant(sent: bool) -> Callable[[Service], AbstractContextManager[TritonServer]]:
    """Return what serves the constant model; its responses are sent, or returned."""

    @contextmanager
    def serve(service: Service) -> Iterator[TritonServer]:
        with temporary_folder() as folder:
            outputs = {"LABEL": ("STRING", 1), "SCORE": ("FP32", 1), "LOGITS": ("FP32", 2)}
            outputs["TRUNCATED"] = ("BOOL", 1)
            values = {"sent": str(sent).lower()}
            write_python_model(folder / "models", CONSTANT_MODEL, outputs, values)
            with TritonServer(folder / "models", PORTS, Workspace(folder / "run")) as server:
                yield server

    return serve


OWN = "bertender"
COSTED: Mapping[str, Costed] = {
    OWN: Costed("bertender", lambda service: serving(service.artifact, PORTS)),
    "sent": Costed("no model, responses sent", _constant(sent=True)),
    "returned": Costed("no model, responses returned", _constant(sent=False)),
}
"""Servers in Triton's Python backend. `bertender serve` sends its responses: see its queue."""


def measure_request_costs(
    artifact: Artifact, texts: list[str], config: ServingConfig
) -> RequestCosts:
    """Measure every row of COSTED, and the model in process, in turns.

    Raises:
        ModelError: the artifact is not an ONNX classifier of single texts.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
    """
    check_servable(artifact)
    config.pins.check()
    if not config.noisy:
        check_load_now()
    natural = prepared_texts(artifact, texts)["natural"]
    service, draw = natural.service(artifact), np.random.default_rng(config.seed)
    visits, calls = [], []
    with progress_bar("requests", total=config.rounds * (len(COSTED) + len(PAUSES_MS))) as bar:
        for number in range(config.rounds):
            for pause_ms in PAUSES_MS:
                calls.append(_calls(artifact, natural.texts, config, number, pause_ms))
                bar.advance()
            for name in draw.permutation([*COSTED]):
                visits.append(_visit(str(name), service, natural.texts, config, number))
                bar.advance()
    return RequestCosts(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        precision=artifact.card.precision,
        parameters=artifact.card.findings.parameters,
        config=config,
        visits=tuple(visits),
        calls=tuple(calls),
        environment=environment(),
    )


def _calls(
    artifact: Artifact, texts: list[str], config: ServingConfig, number: int, pause_ms: float
) -> PausedCalls:
    meter, core = LoadMeter(), config.pins.server
    (cell,) = time_in_process(
        artifact, texts, config.duration_s, core, calls=(1,), pause_ms=pause_ms
    )
    load = meter.stop()
    check_load(load, config.noisy)
    return PausedCalls(round=number, pause_ms=pause_ms, p50_ms=cell.p50_ms, load=load)


def _visit(
    name: str, service: Service, texts: list[str], config: ServingConfig, number: int
) -> CostVisit:
    server = WatchedServer(COSTED[name].serve)
    system = System(COSTED[name].title, server.start)
    with started(system, service, texts, config) as asked:
        meter = LoadMeter()
        loads = tuple(_requests(load, asked, server) for load in SINGLE_TEXTS)
        load = meter.stop()  # while the server is there: its time is not other work
    check_load(load, config.noisy)
    return CostVisit(system=name, round=number, loads=loads, load=load)


def _requests(load: str, asked: StartedSystem, server: WatchedServer) -> RequestLoad:
    """Send a load twice, the first time to warm up; all requests of the second are counted.

    Raises:
        LoadTestError: no request has a response.
    """
    asked.closed(LOADS[load])
    before = server.processor_s()
    run = asked.closed_once(LOADS[load])
    after = server.processor_s()
    if run.latency is None:
        raise LoadTestError(f"{load}: no response at all, but {run.outcomes}.")
    return RequestLoad(
        load=load,
        requests_per_second=texts_per_second(run),
        p50_ms=run.latency.p50_ms,
        processor_ms={
            role: 1000 * (after[role] - before[role]) / len(run.outcome) for role in (SERVER, STUB)
        },
    )


def run(
    artifact: ServedArtifactArgument,
    out: OutFile,
    task: HeldOutTaskOption = "sst2",
    rounds: Annotated[int, typer.Option(min=3, max=20, help="starts of each server")] = 5,
    duration_s: Annotated[float, typer.Option(help="seconds of each load in a round")] = 4.0,
    pin: PinFlag = True,
    noisy: NoisyFlag = False,
) -> None:
    """Measure where the time of a request goes."""
    show_progress()
    check_noisy_out(noisy, out)
    pins = PINNED if pin else NOT_PINNED
    config = ServingConfig(
        rounds=rounds, duration_s=duration_s, warmup_s=0.0, limits=False, pins=pins, noisy=noisy
    )
    texts = [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]
    result = measure_request_costs(Artifact.load(artifact), texts, config)
    for visit in result.visits:
        for each in visit.loads:
            spent = ", ".join(f"{role} {ms:.3f} ms" for role, ms in each.processor_ms.items())
            typer.echo(f"{visit.system}, {each.load}: {each.requests_per_second:.4g}/s, {spent}")
    save_benchmark(result, out)
