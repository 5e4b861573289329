"""Open and closed loop: when requests are sent, and how long they take.

In an open loop, requests come at their times, however long the others take, as those of many
independent users do. Latency counts from the intended time, so that a stall of the server counts
for all who would have come meanwhile. In a closed loop, clients wait for their responses, so that
a slow server gets fewer requests: it measures throughput.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import selectors
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from serve.loadtest.records import Outcome

__all__ = ["Sample", "Send", "arrivals", "closed_loop", "open_loop", "precise_loop"]

START_IN_S = 0.1
TASK_S = 50e-6
"""More than it takes to create a task."""
AWAKE_S = 150e-6

Send = Callable[[int], Awaitable[Outcome]]
"""number of a request -> what came of it; all is prepared, so that it only sends and waits"""


@dataclass(frozen=True)
class Sample:
    """One request, in seconds."""

    intended_s: float
    """From the first request's time on."""
    lag_s: float
    """From the intended time until it was sent."""
    latency_s: float
    """From the intended time until the response."""
    outcome: Outcome


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that wakes within microseconds; by default it is a millisecond late."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def arrivals(rate: float, length_s: float, seed: int) -> list[float]:
    """Return the times of a Poisson process of `rate` a second, from 0 to `length_s`."""
    draw = np.random.default_rng(seed)
    gaps = iter(lambda: float(draw.exponential(1 / rate)), None)
    return [*itertools.takewhile(lambda at: at < length_s, itertools.accumulate(gaps))]


async def open_loop(send: Send, times_s: Sequence[float]) -> list[Sample]:
    """Send a request at each of the times; return when all have ended."""
    loop = asyncio.get_running_loop()
    began = loop.time() + START_IN_S + len(times_s) * TASK_S

    async def request(number: int, intended: float) -> Sample:
        await _until(began + intended)
        lag_s = loop.time() - began - intended
        outcome = await send(number)
        return Sample(intended, lag_s, loop.time() - began - intended, outcome)

    with _no_collections():
        async with asyncio.TaskGroup() as group:
            # all of them before the first is sent: a new task begins later than one that wakes
            tasks = [group.create_task(request(*each)) for each in enumerate(times_s)]
    return [task.result() for task in tasks]


async def _until(time_s: float) -> None:
    """Wait until a time of the event loop, the last of it awake: timers are late by so much."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(max(time_s - AWAKE_S - loop.time(), 0.0))
    while loop.time() < time_s:
        await asyncio.sleep(0)  # responses are read meanwhile


async def closed_loop(send: Send, concurrency: int, length_s: float) -> list[Sample]:
    """Let so many clients send one request after another; return when all have ended."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    numbers = itertools.count()
    samples = []

    async def client() -> None:
        intended = 0.0
        while intended < length_s:
            lag_s = loop.time() - began - intended
            outcome = await send(next(numbers))
            ended = loop.time() - began
            samples.append(Sample(intended, lag_s, ended - intended, outcome))
            intended = ended

    with _no_collections():
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(client())
    return samples


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector from delaying requests, which takes tens of milliseconds."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
