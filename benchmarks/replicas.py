"""Measures two replicas behind a proxy next to one, and restarts them under load.

    python -m benchmarks.replicas ARTIFACT --out FILE.json [--task sst2] [--cores first=0,second=1]

Each replica is a `bertender serve` on one core, behind the haproxy of deploy/. In every round, one
and two of them are started anew, in an order that is drawn, and get requests of many texts over
HTTP in a closed loop. Last, both are restarted one after the other while requests come: the proxy
drains a replica, SIGTERM stops it, and it gets requests again once it is ready.

A process without a core in `--cores` may use all of them. By default, each has one as far as there
are any: on two cores, the replicas share theirs with proxy and generator, whose processor time is
recorded.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Annotated

import numpy as np
import typer

from benchmarks.pinning import Pins
from benchmarks.replica_processes import Proxy, Replica, cpu_seconds_of, proxied, replicas_on
from benchmarks.replica_records import (
    COUNTS,
    Cores,
    ReplicaBenchmark,
    ReplicaConfig,
    ReplicaRun,
    Restart,
    RollingRestart,
)
from benchmarks.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.serving import prepared_texts
from benchmarks.serving_askers import TritonAsker
from benchmarks.serving_loads import StartedSystem
from benchmarks.serving_records import Load, ServingConfig
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.errors import LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.core.progress import progress_bar, show_progress
from bertender.measure.load import LoadMeter, busiest, check_load, check_load_now
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.loadtest.records import LoadRun, Outcome
from serve.loadtest.senders import Request
from serve.loadtest.slow_servers import texts_per_second

__all__ = ["measure_replicas", "run"]

SETTLED_S = 1.0
"""Of load before the first restart, and between the two."""


def measure_replicas(
    artifact: Artifact, texts: Sequence[str], config: ReplicaConfig
) -> ReplicaBenchmark:
    """Measure one and two replicas in turns, and then a rolling restart.

    Raises:
        ServerMissingError: haproxy or Triton is not installed.
        ServingError: a replica or the proxy does not start, or ends otherwise than it should.
        LoadTestError: the restarts took longer than the load.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
    """
    if not config.noisy:
        check_load_now()
    own = prepared_texts(artifact, texts)["natural"].texts
    draw, runs = np.random.default_rng(config.seed), []
    with progress_bar("replicas", total=len(COUNTS) * config.rounds + 1) as bar:
        for number in range(config.rounds):
            for count in draw.permutation(COUNTS).tolist():
                bar.note(f"round {number + 1}: {count}")
                runs.append(_measured(_Deployment(artifact, own, config), count, number))
                bar.advance()
        bar.note("rolling restart")
        restart = _rolling_restart(_Deployment(artifact, own, config))
        bar.advance()
    return ReplicaBenchmark(
        task=artifact.card.task.name,
        name=artifact.name,
        digest=artifact.digest,
        precision=artifact.card.precision,
        config=config,
        runs=tuple(runs),
        restart=restart,
        environment=environment(),
    )


class _Deployment:
    """Replicas behind their proxy, and the load that they get."""

    def __init__(self, artifact: Artifact, texts: Sequence[str], config: ReplicaConfig) -> None:
        self.artifact = artifact
        self.texts = texts
        self.config = config
        self.load = Load(config.texts_per_request, config.clients)

    def cores(self, count: int) -> list[int | None]:
        return [self.config.cores.first, self.config.cores.second][:count]

    def carry(self, watch: _Watch, duration_s: float) -> LoadRun:
        """Return what clients get from the proxy."""
        settings = ServingConfig(
            duration_s=duration_s,
            warmup_s=self.config.warmup_s,
            longest_s=max(ServingConfig().longest_s, duration_s),
            pins=Pins(generator=self.config.cores.generator),
            seed=self.config.seed,
        )
        return StartedSystem(lambda: _WatchedAsker(watch), self.texts, settings).closed(self.load)


class _Watch:
    """Processor time of generator, proxy and replicas, from the first request to the last."""

    def __init__(self, proxy: Proxy, replicas: Sequence[Replica]) -> None:
        self.proxy = proxy
        self.replicas = replicas
        self.began = Event()
        self.began_at: dict[str, float] = {}
        self.ended_at: dict[str, float] = {}

    def begin(self) -> None:
        if not self.began.is_set():
            self.began_at = self._now()
            self.began.set()

    def end(self) -> None:
        self.ended_at = self._now()

    @property
    def cores_used(self) -> dict[str, float]:
        """Processor time by wall-clock time."""
        spent = {name: self.ended_at[name] - began for name, began in self.began_at.items()}
        wall_s = spent.pop("wall")
        return {name: round(seconds / wall_s, 4) for name, seconds in spent.items()}

    def _now(self) -> dict[str, float]:
        started = (each.process for each in self.replicas)
        processes = [each for each in started if each is not None and each.poll() is None]
        return {
            "wall": time.monotonic(),
            "generator": time.process_time(),
            "proxy": cpu_seconds_of(self.proxy.process),
            "replicas": sum(map(cpu_seconds_of, processes)),
        }


class _WatchedAsker(TritonAsker):
    """Requests through the proxy; a watch knows when the first is sent, and when all have ended."""

    def __init__(self, watch: _Watch) -> None:
        super().__init__(watch.proxy.http_url)
        self.watch = watch

    async def send(self, request: Request) -> Outcome:
        self.watch.begin()
        return await super().send(request)

    async def close(self) -> None:
        self.watch.end()
        await super().close()


def _measured(deployment: _Deployment, count: int, number: int) -> ReplicaRun:
    config = deployment.config
    with (
        tempfile.TemporaryDirectory(prefix="bertender-replicas-") as folder,
        replicas_on(deployment.artifact.path, deployment.cores(count), Path(folder)) as replicas,
        proxied(replicas, Path(folder), config.cores.proxy) as proxy,
    ):
        meter, watch = LoadMeter(), _Watch(proxy, replicas)
        run = deployment.carry(watch, config.duration_s)
        load = meter.stop()  # while the replicas are there: their time is not other work
    check_load(load, config.noisy)
    return ReplicaRun(
        replicas=count,
        round=number,
        texts_per_second=texts_per_second(run),
        p50_ms=run.latency.p50_ms if run.latency else None,
        p99_ms=run.p99_ms,
        outcomes=run.outcomes,
        cores_used=watch.cores_used,
        load=load,
    )


def _rolling_restart(deployment: _Deployment) -> RollingRestart:
    config, cores = deployment.config, deployment.cores(len(COUNTS))
    with (
        tempfile.TemporaryDirectory(prefix="bertender-replicas-") as folder,
        replicas_on(deployment.artifact.path, cores, Path(folder)) as replicas,
        proxied(replicas, Path(folder), config.cores.proxy) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        watch, loads = _Watch(proxy, replicas), _LoadsBetweenStops()
        restarting = pool.submit(_restarted, watch, loads, config.warmup_s + SETTLED_S)
        try:
            run = deployment.carry(watch, config.restart_s)
        finally:
            watch.began.set()  # else, where no request was sent, the restarts would wait for one
        restarts = _in_time(restarting, config)
        load = loads.stop()
    check_load(load, config.noisy)
    return RollingRestart(
        outcomes=run.outcomes,
        p50_ms=run.latency.p50_ms if run.latency else None,
        p99_ms=run.p99_ms,
        restarts=restarts,
        load=load,
    )


class _LoadsBetweenStops:
    """The load of the machine while no replica stops.

    The processor time of a stub that ends with its server is in no account of this process's
    children, and would seem to be other work.
    """

    def __init__(self) -> None:
        self.loads: list[MachineLoad] = []
        self.meter = LoadMeter()

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Leave out the time of the block."""
        self.loads.append(self.meter.stop())
        yield
        self.meter = LoadMeter()

    def stop(self) -> MachineLoad:
        """Return the load of the busiest part."""
        return busiest([*self.loads, self.meter.stop()])


def _restarted(watch: _Watch, loads: _LoadsBetweenStops, delay_s: float) -> tuple[Restart, ...]:
    """Restart one replica after the other, some time after the first request."""
    watch.began.wait()
    time.sleep(delay_s)
    restarts = []
    for place, replica in enumerate(watch.replicas):
        watch.proxy.drain(place)
        times_s = [time.monotonic()]
        with loads.left_out():
            for step in (replica.stop, replica.start):
                step()
                times_s.append(time.monotonic())
        watch.proxy.use(place)
        stop_s, start_s = np.diff(times_s).round(2).tolist()
        restarts.append(Restart(replica=place, stop_s=stop_s, start_s=start_s))
        time.sleep(SETTLED_S)
    return tuple(restarts)


def _in_time(restarting: Future[tuple[Restart, ...]], config: ReplicaConfig) -> tuple[Restart, ...]:
    """Return the restarts, which must have ended before the load has."""
    in_time = restarting.done()
    restarts = restarting.result()
    if not in_time:
        raise LoadTestError(
            f"the restarts took longer than the load of {config.restart_s:g} s: {restarts}. Give a "
            "longer --restart-s."
        )
    return restarts


def run(
    artifact: Annotated[Path, typer.Argument(help="ONNX artifact of a task on single texts")],
    out: Annotated[Path, typer.Option(help="the JSON to write")],
    task: Annotated[str, typer.Option(help="its held-out texts are sent")] = "sst2",
    rounds: Annotated[int, typer.Option(min=3, max=20, help="starts of one and of two")] = 5,
    duration_s: Annotated[float, typer.Option(help="seconds of load of each start")] = 8.0,
    restart_s: Annotated[float, typer.Option(help="seconds of load while both restart")] = 60.0,
    texts_per_request: Annotated[int, typer.Option(min=1, max=64)] = 64,
    clients: Annotated[int, typer.Option(min=2, help="that each wait for their response")] = 4,
    cores: Annotated[
        str | None, typer.Option(help="core of first, second, proxy, generator: first=0,second=1")
    ] = None,
    noisy: NoisyFlag = False,
) -> None:
    """Measure two replicas behind a proxy next to one, and a rolling restart."""
    show_progress()
    check_noisy_out(noisy, out)
    config = ReplicaConfig(
        cores=Cores.by_default() if cores is None else Cores.parse(cores),
        rounds=rounds,
        duration_s=duration_s,
        restart_s=restart_s,
        texts_per_request=texts_per_request,
        clients=clients,
        noisy=noisy,
    )
    texts = [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]
    result = measure_replicas(Artifact.load(artifact), texts, config)
    two = result.scaling
    typer.echo(f"two over one: {two.value:.2f} [{two.low:.2f}, {two.high:.2f}]")
    restart = result.restart
    typer.echo(f"rolling restart: {restart.failed} of {sum(restart.outcomes.values())} failed")
    save_benchmark(result, out)


if __name__ == "__main__":
    typer.run(run)
