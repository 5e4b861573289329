"""A system that is started on its core, and the loads that it gets from the generator's core."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from benchmarks.common.pinning import pinned
from benchmarks.serving.clients import BenchmarkClient, Open
from benchmarks.serving.records import Load, ServingConfig
from benchmarks.serving.systems import Service, System
from bertender.core.errors import LoadTestError
from serve.loadtest import (
    FIRST_RATE,
    Limit,
    LoadConfig,
    LoadRun,
    Outcome,
    Request,
    Send,
    check_lag,
    closed_for_long_enough,
    closed_run,
    find_limit,
    open_run,
    precise_loop,
)

__all__ = ["StartedSystem", "started"]

Result = TypeVar("Result")

REQUESTS_OF_P99 = 100
"""Of a rate, at least, within the longest measurement."""
PREPARED = 500
"""Different requests of a load; then the first comes again."""


@contextmanager
def started(
    system: System, service: Service, texts: Sequence[str], config: ServingConfig
) -> Iterator[StartedSystem]:
    """Start a system on the server's core; it is ready inside the block."""
    with pinned(config.pins.server):
        starting = system.start(service)
        opened = starting.__enter__()
    try:
        yield StartedSystem(opened, texts, config)
    finally:
        starting.__exit__(None, None, None)


class StartedSystem:
    """A server, and the texts that it is sent."""

    def __init__(self, opened: Open, texts: Sequence[str], config: ServingConfig) -> None:
        self.opened = opened
        self.texts = texts
        self.config = config

    def closed(self, load: Load) -> LoadRun:
        """Measure the throughput of so many clients, for longer where the server is slow."""
        config = self.config
        with self._asked(load.texts_per_request) as (runner, send):

            def measure(duration_s: float, warmup_s: float) -> LoadRun:
                settings = _closed_loop(load, duration_s, warmup_s)
                return runner.run(closed_run(send, load.clients, settings))

            return closed_for_long_enough(
                measure, load.clients, config.duration_s, config.warmup_s, config.longest_s
            )

    def closed_once(self, load: Load) -> LoadRun:
        """Measure so many clients from the first request on: all that are sent are in the run."""
        with self._asked(load.texts_per_request) as (runner, send):
            settings = _closed_loop(load, self.config.duration_s, 0.0)
            return runner.run(closed_run(send, load.clients, settings))

    def at_rate(self, rate: float, duration_s: float) -> LoadRun:
        """Measure the latency of single texts at a rate."""
        with self._asked(1) as (runner, send):
            return runner.run(open_run(send, rate, self._open_loop(duration_s)))

    def limit(self, slo_p99_ms: float, first_rate: float) -> tuple[Limit | None, str | None]:
        """Return the highest rate of single texts that holds the p99, or why there is none."""
        shortest = self.config.limit_duration_s
        with self._asked(1) as (runner, send):

            def probe(rate: float) -> LoadRun:
                settings = self._open_loop(
                    max(shortest, min(self.config.longest_s, REQUESTS_OF_P99 / rate))
                )
                return check_lag(runner.run(open_run(send, rate, settings)))

            try:
                return find_limit(probe, slo_p99_ms, first_rate), None
            except LoadTestError as error:
                return None, str(error)

    def known_limit(self, known: float | None, slo_p99_ms: float, lacking: str) -> Limit:
        """Return a limit that is known, or look for it.

        Args:
            known: requests a second; None where it is looked for.
            slo_p99_ms: the p99 that must hold.
            lacking: what cannot be done without a limit, for the error.

        Raises:
            LoadTestError: no rate holds the p99.
        """
        if known is not None:
            reason = "it was known, and not looked for"
            return Limit(slo_p99_ms=slo_p99_ms, rate=known, above=None, lower_bound=reason)
        limit, why = self.limit(slo_p99_ms, FIRST_RATE)
        if limit is None:
            raise LoadTestError(f"{lacking}: {why}")
        return limit

    def _open_loop(self, duration_s: float) -> LoadConfig:
        return LoadConfig(
            duration_s=duration_s, warmup_s=self.config.warmup_s, seed=self.config.seed
        )

    @contextmanager
    def _asked(self, size: int) -> Iterator[tuple[asyncio.Runner, Send]]:
        """Open a connection from the generator's core, with requests of so many texts."""
        with (
            pinned(self.config.pins.generator),
            asyncio.Runner(loop_factory=precise_loop) as runner,
        ):
            client = runner.run(_inside(self.opened))
            requests = self._requests(client, size)

            async def send(number: int) -> Outcome:
                return await client.send(requests[number % len(requests)])

            try:
                yield runner, send
            finally:
                runner.run(client.close())

    def _requests(self, client: BenchmarkClient, size: int) -> list[Request]:
        draw = np.random.default_rng(self.config.seed)
        rows = draw.integers(0, len(self.texts), (PREPARED, size)).tolist()
        return [client.prepare([self.texts[row] for row in request]) for request in rows]


def _closed_loop(load: Load, duration_s: float, warmup_s: float) -> LoadConfig:
    return LoadConfig(
        concurrency=load.clients,
        texts_per_request=load.texts_per_request,
        duration_s=duration_s,
        warmup_s=warmup_s,
    )


async def _inside(opened: Callable[[], Result]) -> Result:
    """Return what a function returns inside an event loop, which clients look for."""
    return opened()
