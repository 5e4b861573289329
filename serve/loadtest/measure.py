"""load_test: what `bertender loadtest` does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from bertender.core.environment import environment
from bertender.core.errors import ConfigError, MachineBusyError
from bertender.core.machine_load import MachineLoad
from bertender.core.progress import progress_bar
from bertender.measure.load import busiest, check_load, load_now
from bertender.text.example import Example
from serve.client.access import NO_ACCESS, AccessConfig
from serve.client.async_endpoint import AsyncEndpoint
from serve.client.served_model import ServedModel
from serve.loadtest.config import LoadConfig
from serve.loadtest.generator import check_lag, closed_run, open_run
from serve.loadtest.limit import FIRST_RATE, find_limit
from serve.loadtest.loops import precise_loop
from serve.loadtest.records import Limit, LoadRun, LoadTest, Outcome
from serve.loadtest.senders import SENDERS, Request, Sender
from serve.loadtest.slow_servers import closed_for_long_enough

__all__ = ["Read", "Target", "closed_runs", "load_test"]

PREPARED = 1000
"""Different requests; then the first comes again."""

Read = Callable[[int], Sequence[Example]]
"""number of texts that the model reads at once -> the texts to send"""


@dataclass(frozen=True)
class Target:
    """A server, and the requests that it is sent."""

    protocol: str
    model: ServedModel
    texts: int
    sender: Sender
    requests: Sequence[Request]

    async def send(self, number: int) -> Outcome:
        return await self.sender.send(self.requests[number % len(self.requests)])


def load_test(
    url: str, read: Read, config: LoadConfig, access: AccessConfig = NO_ACCESS
) -> LoadTest:
    """Send requests to an endpoint as the settings say, and return what was measured.

    A search that ends early leaves a lower bound of the limit.

    Raises:
        MachineBusyError: other work disturbs this machine, and there is no such bound.
        ServingError: no endpoint responds at the url, or it refuses a text.
        LoadTestError: requests were not sent in time, or no rate holds the p99.
    """
    before = load_now()
    check_load(before, config.noisy)
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        target = runner.run(_open(url, read, config, access))
        try:
            runs, limit = _measure(runner, target, config)
        finally:
            runner.run(target.sender.close())
    after = load_now()
    limit = _undisturbed(limit, after, config)
    return LoadTest(
        protocol=target.protocol,
        model=target.model.digest,
        texts=target.texts,
        config=config,
        runs=tuple(runs),
        limit=limit,
        environment=environment(),
        load=busiest([before, after]),
    )


def closed_runs(url: str, read: Read, loads: Sequence[LoadConfig]) -> list[LoadRun]:
    """Measure the throughput of one number of clients after the other.

    A load is measured for longer where the server is slow.

    Args:
        url: of an endpoint on this machine.
        read: returns the texts to send.
        loads: each with a `concurrency`.

    Raises:
        ServingError, ConfigError, LoadTestError: as `load_test`.
    """
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        return [_closed(runner, url, read, load) for load in loads]


def _closed(runner: asyncio.Runner, url: str, read: Read, load: LoadConfig) -> LoadRun:
    clients = load.concurrency or 1
    target = runner.run(_open(url, read, load, NO_ACCESS))

    def measure(duration_s: float, warmup_s: float) -> LoadRun:
        changed = load.model_copy(update={"duration_s": duration_s, "warmup_s": warmup_s})
        return runner.run(closed_run(target.send, clients, changed))

    try:
        return closed_for_long_enough(measure, clients, load.duration_s, load.warmup_s)
    finally:
        runner.run(target.sender.close())


def _undisturbed(limit: Limit | None, load: MachineLoad, config: LoadConfig) -> Limit | None:
    """Return a limit, a lower bound where other work may have made the server slower."""
    try:
        check_load(load, config.noisy)
    except MachineBusyError as error:
        if limit is None:
            raise
        return limit.model_copy(update={"above": None, "lower_bound": str(error)})
    return limit


async def _open(url: str, read: Read, config: LoadConfig, access: AccessConfig) -> Target:
    """Connect, and prepare the requests; the first is sent to see that the server takes it."""
    async with AsyncEndpoint(
        url, model=config.model, timeout_s=config.timeout_s, access=access
    ) as endpoint:
        texts = read(endpoint.model.text_columns)
        _check_batch(endpoint.model, config)
        drawn = _drawn(texts, config)
        await endpoint.classify(drawn[0])
    protocol = endpoint.protocol.name
    sender = SENDERS[protocol](endpoint.address, endpoint.access, config.timeout_s)
    try:
        requests = [
            sender.prepare(endpoint.model, endpoint.model.columns(examples)) for examples in drawn
        ]
    except BaseException:
        await sender.close()
        raise
    return Target(protocol, endpoint.model, len(texts), sender, requests)


def _check_batch(model: ServedModel, config: LoadConfig) -> None:
    if config.texts_per_request > model.max_batch_size:
        raise ConfigError(
            f"--texts-per-request {config.texts_per_request}: the model takes at most "
            f"{model.max_batch_size} (`bertender serve --max-batch-size`)."
        )


def _drawn(texts: Sequence[Example], config: LoadConfig) -> list[list[Example]]:
    """Return the texts of each request."""
    draw = np.random.default_rng(config.seed)
    rows = draw.integers(0, len(texts), (PREPARED, config.texts_per_request)).tolist()
    return [[texts[row] for row in request] for request in rows]


def _measure(
    runner: asyncio.Runner, target: Target, config: LoadConfig
) -> tuple[list[LoadRun], Limit | None]:
    runs: list[LoadRun] = []
    if config.concurrency:
        return [runner.run(closed_run(target.send, config.concurrency, config))], None

    def probe(rate: float) -> LoadRun:
        runs.append(check_lag(runner.run(open_run(target.send, rate, config))))
        bar.note(f"{rate:.4g} requests/s: p99 {_words(runs[-1].p99_ms)}")
        bar.advance()
        return runs[-1]

    first_rate = config.rate or FIRST_RATE
    with progress_bar("load test", total=None if config.find_limit else 1) as bar:
        if config.find_limit:
            return runs, find_limit(probe, config.slo_p99_ms, first_rate)
        return [probe(first_rate)], None


def _words(p99_ms: float | None) -> str:
    return "none: requests without a response" if p99_ms is None else f"{p99_ms:.3g} ms"
