"""Load tests of an endpoint: closed loop, open loop, and the highest rate that holds."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol
from xml.sax.saxutils import escape

import aiohttp
import grpc.aio
import numpy as np
import numpy.typing as npt
import tritonclient.http
from pydantic import Field
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from bertender.comparison.records import Percentiles, percentiles
from bertender.core.config import Config, Record, Rule
from bertender.core.errors import ConfigError, LoadTestError, MachineBusyError
from bertender.core.machine import Environment, environment
from bertender.core.machine_load import MachineLoad, busiest, check_load, load_now
from bertender.core.progress import progress_bar
from bertender.text.batch import Example
from serve.client.access import NO_ACCESS, Access, AccessConfig, Address
from serve.client.endpoint import AsyncEndpoint
from serve.client.failures import LATE, OVERLOADED, Failure
from serve.client.protocols import GRPC, HTTP, TRUNCATING
from serve.client.served_model import Columns, ServedModel
from serve.wire import INPUT_NAMES, MODEL_NAME

# --- from serve.loadtest.texts
# Texts that requests are made of: the held-out texts of a task, or those of a file.

TEXT_RULES: Mapping[str, Rule[Any]] = {
    "not one source of texts": Rule(
        lambda config: (config.task is None) == (config.input is None),
        "texts come from --task NAME or from --input FILE. Give one of them.",
    ),
    "columns of no file": Rule(
        lambda config: config.input is None,
        "they are of --input FILE. Give it as well, or leave them out.",
        settings=frozenset({"text_column", "pair_column"}),
    ),
}


class TextsConfig(Config):
    """Where the texts of requests come from."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = TEXT_RULES

    task: str | None = Field(None, description="send the held-out texts of this task")
    input: Path | None = Field(
        None, description="send the texts of this file: CSV, TSV, JSONL, Parquet or .txt"
    )
    text_column: str = Field("text", description="column of the text in the file")
    pair_column: str | None = Field(None, description="column of the second text, for pairs")


def texts_to_send(config: TextsConfig, text_columns: int) -> Sequence[Example]:
    """Return the texts of a task or a file, for a model that reads so many texts at once.

    Raises:
        DataError: the file or the task cannot be read.
    """
    if config.input:
        from serve.bulk import read_file

        return read_file(config.input, config.text_column, config.pair_column, text_columns).texts
    from bertender.tasks.loading import load_task
    from bertender.tasks.task import TaskConfig

    assert config.task is not None, "a rule of the settings"
    return load_task(TaskConfig.parse({"task": config.task})).dev.examples


# --- from serve.loadtest.config
# Settings of `bertender loadtest`.

LOWEST_RATE = 0.5
"""Requests a second below which no limit is looked for."""


def _kinds(config: LoadConfig) -> int:
    return (config.concurrency is not None) + (config.rate is not None or config.find_limit)


RULES: Mapping[str, Rule[Any]] = {
    "not one kind of load": Rule(
        lambda config: _kinds(config) != 1,
        "--rate sends at so many requests a second, --concurrency so many at a time, --find-limit "
        "looks for the highest rate. Give one; with --find-limit, --rate is the first.",
    ),
    "a limit that nothing reads": Rule(
        lambda config: not config.find_limit,
        "it is what --find-limit looks for. Give it as well, or leave this out.",
        settings=frozenset({"slo_p99_ms"}),
    ),
    "a search that begins too low": Rule(
        lambda config: config.find_limit and config.rate < LOWEST_RATE,
        f"--find-limit looks for no rate below {LOWEST_RATE:g} requests/s. Give a higher --rate "
        "to begin with, or leave it out.",
        settings=frozenset({"rate"}),
    ),
}
"""Conflicts of settings."""


class LoadConfig(TextsConfig):
    """How requests arrive, what they hold, and how long that is measured."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    rate: float | None = Field(
        None,
        gt=0,
        description="open loop: requests a second, at random times that are drawn before",
    )
    concurrency: int | None = Field(
        None, ge=1, le=500, description="closed loop: clients that each wait for their response"
    )
    find_limit: bool = Field(
        False, description="look for the highest rate whose p99 holds --slo-p99-ms"
    )
    slo_p99_ms: float = Field(50.0, gt=0, description="p99 that must hold, in milliseconds")
    model: str = Field(MODEL_NAME, description="name of the model on the server")
    texts_per_request: int = Field(1, ge=1, description="texts in each request")
    duration_s: float = Field(10.0, gt=0, description="measured seconds of each rate")
    warmup_s: float = Field(2.0, ge=0, description="seconds of the same load before them")
    timeout_s: float = Field(10.0, gt=0, description="longest wait for a response; none is retried")
    seed: int = Field(0, ge=0, description="which texts and times are drawn")
    noisy: bool = Field(
        False, description="measure on a busy machine as well, and mark the figures as noisy"
    )


# --- from serve.loadtest.records
# Records of a load test, raw samples included.

Outcome = Literal["ok", "rejected", "late", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "rejected", "late", "failed")
"""A response; a rejection for now; none within the timeout; any other error."""


class LoadRun(Record):
    """What one rate, or one number of clients, gave."""

    rate: float | None = Field(description="open loop: requests a second; None in a closed loop")
    concurrency: int | None = Field(description="closed loop: clients; None in an open loop")
    texts_per_request: int
    duration_s: float
    outcomes: dict[Outcome, int] = Field(description="requests of the measured time, by outcome")
    latency: Percentiles | None = Field(
        description="of those that are ok, from the intended time to send; None where none is"
    )
    p99_ms: float | None = Field(
        description="of all requests, where those without a response last for ever; None: so do "
        "more than 1 %"
    )
    send_lag: Percentiles = Field(description="how late requests were sent, as latency contains it")
    requests_per_second: float = Field(description="responses within the measured time")
    intended_s: tuple[float, ...] = Field(description="raw: when to send, from the first request")
    lag_ms: tuple[float, ...] = Field(description="raw, in the same order")
    latency_ms: tuple[float, ...] = Field(description="raw, in the same order")
    outcome: tuple[Outcome, ...] = Field(description="raw, in the same order")

    @property
    def load(self) -> str:
        """The rate or the number of clients, in words."""
        return f"{self.rate:.4g} requests/s" if self.rate else f"{self.concurrency} clients"

    @property
    def texts_per_second(self) -> float:
        return self.requests_per_second * self.texts_per_request

    @property
    def lag_share(self) -> float:
        """The median send lag as a share of the median latency."""
        return self.send_lag.p50_ms / self.latency.p50_ms if self.latency else math.inf

    def holds(self, slo_p99_ms: float) -> bool:
        """Return whether the p99 of all requests is within a limit."""
        return self.p99_ms is not None and self.p99_ms <= slo_p99_ms


class Limit(Record):
    """The highest rate that holds a p99."""

    slo_p99_ms: float
    rate: float = Field(description="requests a second that hold it")
    above: float | None = Field(
        description="the next rate that was measured, which does not; None where none is known"
    )
    lower_bound: str | None = Field(
        None,
        description="why the search ended early, so that the limit may be higher; None where it "
        "did not",
    )


class LoadTest(Record):
    """A load test and its conditions."""

    protocol: str
    model: str = Field(description="digest of the served artifact")
    texts: int = Field(description="texts that requests are drawn from")
    config: LoadConfig
    runs: tuple[LoadRun, ...] = Field(description="in the order in which they were measured")
    limit: Limit | None = Field(description="None where it was not looked for")
    environment: Environment = Field(description="of the machine that sends, not of the server")
    load: MachineLoad = Field(
        description="just before the first request or after the last, the busier of the two: "
        "meanwhile, a server on the same machine is at work too"
    )


# --- from serve.loadtest.loops
# Open and closed loop: when requests are sent, and how long they take.
#
# In an open loop, requests come at their times, however long the others take, as those of many
# independent users do. Latency counts from the intended time, so that a stall of the server
# counts
# for all who would have come meanwhile. In a closed loop, clients wait for their responses, so
# that
# a slow server gets fewer requests: it measures throughput.

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


# --- from serve.loadtest.generator
# Generator: runs a loop, leaves out its warm-up, and computes the figures.

MOST_LAG = 0.05
"""Of the median latency; above it, the generator is measured more than the server."""


async def open_run(send: Send, rate: float, config: LoadConfig) -> LoadRun:
    """Measure the latency at a rate."""
    times_s = arrivals(rate, config.warmup_s + config.duration_s, config.seed)
    return _run(await open_loop(send, times_s), config, rate=rate)


async def closed_run(send: Send, concurrency: int, config: LoadConfig) -> LoadRun:
    """Measure the throughput of so many clients."""
    length_s = config.warmup_s + config.duration_s
    return _run(await closed_loop(send, concurrency, length_s), config, concurrency=concurrency)


def check_lag(run: LoadRun) -> LoadRun:
    """Return a run whose requests were sent in time.

    Raises:
        LoadTestError: they were not, so that its latencies are not those of the server.
    """
    if run.rate is not None and run.latency and run.lag_share > MOST_LAG:
        raise LoadTestError(
            f"at {run.rate:.4g} requests/s, the load generator sent {run.send_lag.p50_ms:.3g} ms "
            f"late (median), {run.lag_share:.0%} of the median latency, {run.latency.p50_ms:.3g} "
            f"ms; allowed are {MOST_LAG:.0%}. It needs a core of its own: start it with `taskset "
            "-c 1` and the server with `taskset -c 0`, or send from another machine. A lower "
            "--rate and more --texts-per-request help too."
        )
    return run


def _run(
    samples: Sequence[Sample],
    config: LoadConfig,
    rate: float | None = None,
    concurrency: int | None = None,
) -> LoadRun:
    end_s = config.warmup_s + config.duration_s
    measured = [each for each in samples if config.warmup_s <= each.intended_s < end_s]
    if not measured:
        raise LoadTestError(
            f"no request falls into the {config.duration_s:g} s that are measured. Send more: a "
            "higher --rate, or a longer --duration-s."
        )
    latency_ms = np.array([1000 * each.latency_s for each in measured])
    lag_ms = np.array([1000 * each.lag_s for each in measured])
    succeeded = np.array([each.outcome == "ok" for each in measured])
    counts = Counter(each.outcome for each in measured)
    return LoadRun(
        rate=rate,
        concurrency=concurrency,
        texts_per_request=config.texts_per_request,
        duration_s=config.duration_s,
        outcomes={outcome: counts[outcome] for outcome in OUTCOMES},
        latency=percentiles(latency_ms[succeeded]) if succeeded.any() else None,
        p99_ms=_p99(np.where(succeeded, latency_ms, math.inf)),
        send_lag=percentiles(lag_ms),
        requests_per_second=_within(samples, config.warmup_s, end_s) / config.duration_s,
        intended_s=tuple(round(each.intended_s, 6) for each in measured),
        lag_ms=tuple(lag_ms.round(3).tolist()),
        latency_ms=tuple(latency_ms.round(3).tolist()),
        outcome=tuple(each.outcome for each in measured),
    )


def _p99(latency_ms: npt.NDArray[np.float64]) -> float | None:
    """Return the 99th percentile without interpolation, which infinity would spoil."""
    value = float(np.percentile(latency_ms, 99, method="higher"))
    return value if math.isfinite(value) else None


def _within(samples: Sequence[Sample], start_s: float, end_s: float) -> int:
    """Return how many responses came in a time, whenever they were asked for."""
    ended = (each.intended_s + each.latency_s for each in samples if each.outcome == "ok")
    return sum(start_s <= at < end_s for at in ended)


# --- from serve.loadtest.limit
# Search of the highest rate that holds a p99.

FIRST_RATE = 16.0
WITHIN = 0.05
"""The rate that holds and the one that does not are this near, as a share."""


def find_limit(
    probe: Callable[[float], LoadRun], slo_p99_ms: float, first_rate: float = FIRST_RATE
) -> Limit:
    """Double the rate until it does not hold (or halve it until it does), then bisect.

    Args:
        probe: measures a rate, or raises LoadTestError.
        slo_p99_ms: what must hold; a request without a response breaks it.
        first_rate: where to begin.

    Returns:
        The limit; a lower bound where a rate cannot be measured.

    Raises:
        LoadTestError: no rate holds it, or none could be measured that does.
    """
    holds, breaks = 0.0, math.inf
    rate = first_rate
    while breaks > holds * (1 + WITHIN):
        if rate < LOWEST_RATE:
            raise LoadTestError(
                f"even {breaks:.3g} requests/s do not hold a p99 of {slo_p99_ms:g} ms. Allow more "
                "with --slo-p99-ms, or send fewer --texts-per-request."
            )
        try:
            is_held = probe(rate).holds(slo_p99_ms)
        except LoadTestError as error:
            if not holds:
                raise
            above = None if math.isinf(breaks) else breaks
            return Limit(slo_p99_ms=slo_p99_ms, rate=holds, above=above, lower_bound=str(error))
        holds, breaks = (rate, breaks) if is_held else (holds, rate)
        rate = _between(holds, breaks)
    return Limit(slo_p99_ms=slo_p99_ms, rate=holds, above=breaks)


def _between(holds: float, breaks: float) -> float:
    """Return the rate to measure next."""
    if math.isinf(breaks):
        return 2 * holds
    return math.sqrt(holds * breaks) if holds else breaks / 2


# --- from serve.loadtest.slow_servers
# Closed loops of servers whose responses may take longer than the loop was meant to.

LONGEST_S = 8.0
RESPONSES = 2
"""Of each client, at least, within the longest measurement."""

Measure = Callable[[float, float], LoadRun]
"""(measured seconds, seconds of warm-up) -> what clients got"""


def closed_for_long_enough(
    measure: Measure,
    clients: int,
    duration_s: float,
    warmup_s: float,
    longest_s: float = LONGEST_S,
) -> LoadRun:
    """Measure clients; once more, and for longer, where each has had hardly a response.

    Of a few large batches, it is chance how many end within a second.
    """
    try:
        run = measure(duration_s, warmup_s)
    except LoadTestError:  # no client has sent a second request
        return measure(max(duration_s, longest_s), 0.0)
    share = run.requests_per_second * duration_s / (RESPONSES * clients)
    longer = min(longest_s, duration_s / max(share, 1e-9))
    return run if longer <= duration_s else measure(longer, 0.0)


def texts_per_second(run: LoadRun) -> float:
    """Return the throughput of clients, also where every response came after the loop's end.

    Raises:
        LoadTestError: there is no response at all.
    """
    return run.texts_per_second or _until_the_last(run)


def _until_the_last(run: LoadRun) -> float:
    samples = zip(run.intended_s, run.latency_ms, run.outcome, strict=True)
    ends = [intended + ms / 1000 for intended, ms, outcome in samples if outcome == "ok"]
    if not ends:
        raise LoadTestError(
            f"no response at all, but {run.outcomes}. The server is too slow for such requests: "
            "send fewer texts in each, or from fewer clients."
        )
    return len(ends) * run.texts_per_request / max(ends)


# --- from serve.loadtest.senders
# Senders: requests as bytes that were made before, over connections that stay open.

MOST_CONNECTIONS = 500
"""Fewer than the descriptors that `select` takes."""
INFER = "/inference.GRPCInferenceService/ModelInfer"


@dataclass(frozen=True)
class Request:
    """A request that only needs to be sent."""

    model: str
    """Its name on the server."""
    body: bytes
    headers: Mapping[str, str]


class Sender(Protocol):
    """Sends prepared requests to one server."""

    def prepare(self, model: ServedModel, columns: Columns) -> Request: ...

    async def send(self, request: Request) -> Outcome: ...

    async def close(self) -> None: ...


def _outcome(failure: Failure | None) -> Outcome:
    outcomes: dict[Failure | None, Outcome] = {OVERLOADED: "rejected", LATE: "late"}
    return outcomes.get(failure, "failed")


class HttpSender:
    """Over HTTP/1.1, a connection for each request that is under way."""

    def __init__(self, address: Address, access: Access, timeout_s: float) -> None:
        scheme = "https" if address.tls else "http"
        self.url = f"{scheme}://{address.host_and_port}/v2/models"
        self.timeout_s = timeout_s
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=MOST_CONNECTIONS, ssl=access.context or True),
            headers=access.headers,
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )

    def prepare(self, model: ServedModel, columns: Columns) -> Request:
        inputs = model.tensors(columns, HTTP.tensor)
        generate = tritonclient.http.InferenceServerClient.generate_request_body
        body, json_size = generate(inputs, parameters=TRUNCATING)
        return Request(model.name, body, {"Inference-Header-Content-Length": str(json_size)})

    async def send(self, request: Request) -> Outcome:
        try:
            async with asyncio.timeout(self.timeout_s):
                url, headers = f"{self.url}/{request.model}/infer", request.headers
                async with self.session.post(url, data=request.body, headers=headers) as response:
                    await response.read()
        except (OSError, aiohttp.ClientError) as error:
            return _outcome(HTTP.failure(error))
        if response.status == 200:
            return "ok"
        return _outcome(HTTP.failure(InferenceServerException("", status=str(response.status))))

    async def close(self) -> None:
        await self.session.close()


class GrpcSender:
    """Over one HTTP/2 connection."""

    def __init__(self, address: Address, access: Access, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.metadata = tuple(access.headers.items())
        tls, place = GRPC.credentials(access), address.host_and_port
        self.channel = (
            grpc.aio.secure_channel(place, tls, options=GRPC.channel_options)
            if tls
            else grpc.aio.insecure_channel(place, options=GRPC.channel_options)
        )
        self.infer: Any = self.channel.unary_unary(INFER)  # bytes in, bytes out

    def prepare(self, model: ServedModel, columns: Columns) -> Request:
        request = service_pb2.ModelInferRequest(model_name=model.name)
        for name, value in TRUNCATING.items():
            request.parameters[name].bool_param = value
        for name, column in zip(INPUT_NAMES, columns, strict=False):
            request.inputs.add(name=name, datatype="BYTES", shape=column.shape)
            request.raw_input_contents.append(serialize_byte_tensor(column).item())
        return Request(model.name, request.SerializeToString(), {})

    async def send(self, request: Request) -> Outcome:
        try:
            await self.infer(request.body, timeout=self.timeout_s, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            status = InferenceServerException(error.details(), status=str(error.code()))
            return _outcome(GRPC.failure(status))
        return "ok"

    async def close(self) -> None:
        await self.channel.close()


SENDERS: Mapping[str, Callable[[Address, Access, float], Sender]] = {
    "http": HttpSender,
    "grpc": GrpcSender,
}
"""By the name of the protocol: (address, access, timeout in seconds) -> a sender."""

# --- from serve.loadtest.measure
# load_test: what `bertender loadtest` does.

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


# --- from serve.loadtest.plot
# Picture of a load test, as SVG: latency over the rate, or over the percentile of one run.

WIDTH, HEIGHT, MARGIN = 560, 320, 48
BLUE, ORANGE, GREY, BLACK = "#0072b2", "#d55e00", "#666666", "#000000"
"""Distinct also for those who see no red or green (Okabe and Ito)."""
NINES = (0.0, 50.0, 90.0, 99.0, 99.9)
POINTS = 60


@dataclass(frozen=True)
class Line:
    """A line of the picture."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


@dataclass(frozen=True)
class Chart:
    """Lines, and the marks of the horizontal axis: place -> words."""

    title: str
    lines: Sequence[Line]
    marks: dict[float, str]


def load_svg(test: LoadTest) -> str:
    """Draw a load test: of several rates, p50 and p99 by rate; of one, latency by percentile."""
    several = [run for run in test.runs if run.rate is not None]
    by_rate = len(several) > 1 or test.limit
    return _svg(_by_rate(test, several) if by_rate else _by_percentile(test.runs[0]))


def _by_rate(test: LoadTest, runs: Sequence[LoadRun]) -> Chart:
    ordered = sorted(runs, key=lambda run: run.rate or 0.0)
    rates = [run.rate or 0.0 for run in ordered]
    p50 = [(run.rate or 0.0, run.latency.p50_ms) for run in ordered if run.latency]
    p99 = [(run.rate or 0.0, run.p99_ms) for run in ordered if run.p99_ms is not None]
    lines = [Line("p50", BLUE, p50), Line("p99", ORANGE, p99)]
    if test.limit:
        lines.extend(_limit_lines(test.limit, rates[-1]))
    texts = ordered[0].texts_per_request
    marks = {part * rates[-1]: f"{part * rates[-1]:.3g}" for part in (0.0, 0.25, 0.5, 0.75, 1.0)}
    return Chart(f"latency (ms) by requests a second, {texts} texts each", lines, marks)


def _limit_lines(limit: Limit, furthest: float) -> Iterator[Line]:
    """Yield the p99 that must hold, and the rate that holds it where that is a lower bound."""
    p99_ms = limit.slo_p99_ms
    ends = [(0.0, p99_ms), (furthest, p99_ms)]
    yield Line(f"limit of the p99: {p99_ms:g} ms", GREY, ends, dashed=True)
    if limit.lower_bound:
        words = f"at least {limit.rate:.4g} requests/s: a lower bound"
        yield Line(words, BLACK, [(limit.rate, 0.0), (limit.rate, p99_ms)], dashed=True)


def _by_percentile(run: LoadRun) -> Chart:
    """Draw one run; each further nine of the percentile has the same room."""
    succeeded = [ms for ms, came in zip(run.latency_ms, run.outcome, strict=True) if came == "ok"]
    depths = np.linspace(0.0, _nines(NINES[-1]), POINTS)
    percentiles = 100 * (1 - 10**-depths)
    latency_ms = np.percentile(succeeded, percentiles) if succeeded else np.zeros(POINTS)
    points = list(zip(depths.tolist(), latency_ms.tolist(), strict=True))
    title = f"latency (ms) by percentile, {run.load} of {run.texts_per_request} texts"
    return Chart(title, [Line("latency", BLUE, points)], {_nines(p): f"p{p:g}" for p in NINES})


def _nines(percentile: float) -> float:
    return -math.log10(1 - percentile / 100)


def _svg(chart: Chart) -> str:
    widest = max(chart.marks) or 1.0
    values = [y for line in chart.lines for _, y in line.points]
    highest = max(values, default=0.0) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = MARGIN + x / widest * (WIDTH - 2 * MARGIN)
        return across, HEIGHT - MARGIN - y / highest * (HEIGHT - 2 * MARGIN)

    drawn = [_polyline(line, place) for line in chart.lines if line.points]
    names = [
        f'<text x="{MARGIN + 10}" y="{MARGIN + 14 + 16 * row}" fill="{line.colour}">'
        f"{escape(line.name)}</text>"
        for row, line in enumerate(chart.lines)
    ]
    axes = _axes(chart, highest, place)
    return "\n".join([_head(chart.title), *axes, *drawn, *names, "</svg>", ""])


def _polyline(line: Line, place: Callable[[float, float], tuple[float, float]]) -> str:
    path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in line.points)
    dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
    return (
        f'<polyline fill="none" stroke="{line.colour}" stroke-width="2"{dashes} points="{path}"/>'
    )


def _head(title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{MARGIN}" y="20" font-size="13">{escape(title)}</text>'
    )


def _axes(
    chart: Chart, highest: float, place: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    right, bottom = WIDTH - MARGIN, HEIGHT - MARGIN
    across = [
        f'<text x="{place(at, 0)[0]:.1f}" y="{bottom + 16}" text-anchor="middle">{words}</text>'
        for at, words in chart.marks.items()
    ]
    upward = [
        f'<text x="{MARGIN - 6}" y="{place(0, part * highest)[1] + 4:.1f}" '
        f'text-anchor="end">{part * highest:.3g}</text>'
        for part in (0.0, 0.5, 1.0)
    ]
    frame = f'<path d="M{MARGIN} {MARGIN} V{bottom} H{right}" fill="none" stroke="#333333"/>'
    return [frame, *across, *upward]
