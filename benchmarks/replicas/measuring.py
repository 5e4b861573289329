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
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.common.options import HeldOutTaskOption, OutFile, ServedArtifactArgument
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.replicas.load import Deployment, Watch
from benchmarks.replicas.processes import proxied, replicas_on
from benchmarks.replicas.records import (
    COUNTS,
    Cores,
    ReplicaBenchmark,
    ReplicaConfig,
    ReplicaRun,
)
from benchmarks.replicas.rolling_restart import rolling_restart
from benchmarks.serving.prepared import prepared_texts
from bertender.core.artifact import Artifact
from bertender.core.environment import environment
from bertender.core.progress import progress_bar, show_progress
from bertender.measure.load import LoadMeter, check_load, check_load_now
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve.loadtest.slow_servers import texts_per_second

__all__ = ["measure_replicas", "run"]


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
                runs.append(_measured(Deployment(artifact, own, config), count, number))
                bar.advance()
        bar.note("rolling restart")
        restart = rolling_restart(Deployment(artifact, own, config))
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


def _measured(deployment: Deployment, count: int, number: int) -> ReplicaRun:
    config = deployment.config
    with (
        tempfile.TemporaryDirectory(prefix="bertender-replicas-") as folder,
        replicas_on(deployment.artifact.path, deployment.cores(count), Path(folder)) as replicas,
        proxied(replicas, Path(folder), config.cores.proxy) as proxy,
    ):
        meter, watch = LoadMeter(), Watch(proxy, replicas)
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


def run(
    artifact: ServedArtifactArgument,
    out: OutFile,
    task: HeldOutTaskOption = "sst2",
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
