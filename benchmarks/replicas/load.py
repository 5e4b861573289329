"""The load of replicas behind their proxy, and the processor time that it takes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event

from benchmarks.common.pinning import Pins
from benchmarks.replicas.processes import Proxy, Replica, cpu_seconds_of
from benchmarks.replicas.records import ReplicaConfig
from benchmarks.serving.clients import TritonClient
from benchmarks.serving.loads import StartedSystem
from benchmarks.serving.records import Load, ServingConfig
from bertender.core.artifact import Artifact
from serve.loadtest.records import LoadRun, Outcome
from serve.loadtest.senders import Request

__all__ = ["Deployment", "Watch", "WatchedClient"]


class Deployment:
    """Replicas behind their proxy, and the load that they get."""

    def __init__(self, artifact: Artifact, texts: Sequence[str], config: ReplicaConfig) -> None:
        self.artifact = artifact
        self.texts = texts
        self.config = config
        self.load = Load(config.texts_per_request, config.clients)

    def cores(self, count: int) -> list[int | None]:
        return [self.config.cores.first, self.config.cores.second][:count]

    def carry(self, watch: Watch, duration_s: float) -> LoadRun:
        """Return what clients get from the proxy."""
        settings = ServingConfig(
            duration_s=duration_s,
            warmup_s=self.config.warmup_s,
            longest_s=max(ServingConfig().longest_s, duration_s),
            pins=Pins(generator=self.config.cores.generator),
            seed=self.config.seed,
        )
        return StartedSystem(lambda: WatchedClient(watch), self.texts, settings).closed(self.load)


class Watch:
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


class WatchedClient(TritonClient):
    """Requests through the proxy; a watch knows when the first is sent, and when all have ended."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch.proxy.http_url)
        self.watch = watch

    async def send(self, request: Request) -> Outcome:
        self.watch.begin()
        return await super().send(request)

    async def close(self) -> None:
        self.watch.end()
        await super().close()
