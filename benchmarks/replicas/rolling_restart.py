"""Restarts replicas one after the other under load; the proxy drains each before."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.replicas.load import Deployment, Watch
from benchmarks.replicas.processes import proxied, replicas_on
from benchmarks.replicas.records import COUNTS, ReplicaConfig, Restart, RollingRestart
from bertender.core.errors import LoadTestError
from bertender.core.machine_load import MachineLoad
from bertender.measure.load import LoadMeter, busiest, check_load

__all__ = ["rolling_restart"]

SETTLED_S = 1.0
"""Of load before the first restart, and between the two."""


def rolling_restart(deployment: Deployment) -> RollingRestart:
    """Restart both replicas while clients ask.

    Raises:
        ServingError: a replica or the proxy does not start, or ends otherwise than it should.
        LoadTestError: the restarts took longer than the load.
        MachineBusyError: other work disturbs the figures, and the config allows no noisy ones.
    """
    config, cores = deployment.config, deployment.cores(len(COUNTS))
    with (
        tempfile.TemporaryDirectory(prefix="bertender-replicas-") as folder,
        replicas_on(deployment.artifact.path, cores, Path(folder)) as replicas,
        proxied(replicas, Path(folder), config.cores.proxy) as proxy,
        ThreadPoolExecutor(1) as pool,
    ):
        watch, loads = Watch(proxy, replicas), _LoadsBetweenStops()
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


def _restarted(watch: Watch, loads: _LoadsBetweenStops, delay_s: float) -> tuple[Restart, ...]:
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
