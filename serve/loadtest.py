"""Load tests of an endpoint: closed loop, open loop, and the highest rate within a p99 limit.

In an open loop, requests are sent at their scheduled times, however long others take, like those of
many independent users. Latency counts from the scheduled time, so that a stall of the server counts
for all users who would have come meanwhile. In a closed loop, clients wait for their responses, so
that a slow server gets fewer requests: it measures throughput.
"""

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

import numpy as np
from pydantic import Field

from bertender.comparison.records import Percentiles, percentiles
from bertender.core.config import Config, Record, Rule
from bertender.core.errors import ConfigError, LoadTestError, MachineBusyError
from bertender.core.machine import (
    Environment,
    MachineLoad,
    busiest,
    check_load,
    environment,
    load_now,
)
from bertender.core.progress import progress_bar
from bertender.problems.problem import Problem
from bertender.text.batch import Example
from serve.client.access import NO_ACCESS, Access, AccessConfig, Address
from serve.client.endpoint import AsyncEndpoint, Columns, ServedModel
from serve.client.protocols import GRPC, HTTP, LATE, OVERLOADED, TRUNCATING, Failure
from serve.wire import MODEL_NAME, input_names


class TextsConfig(Config):
    """Source of the requests' texts: the held-out texts of a task, or a file."""

    panel: ClassVar[str] = "Texts"
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
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

    task: str | None = Field(None, description="send the held-out texts of this task")
    input: Path | None = Field(
        None,
        description="send the texts of this file: CSV, TSV, JSONL, Parquet or .txt; of "
        "taggers CoNLL, of questions SQuAD's JSON",
    )
    text_column: str = Field("text", description="column of the text in the file")
    pair_column: str | None = Field(None, description="column of the second text, for pairs")


def texts_to_send(
    config: TextsConfig, text_columns: int, problem: Problem[Any]
) -> Sequence[Example]:
    """Return the texts of a task or a file, for a model of this kind of problem that reads this
    many texts at once.

    Raises:
        DataError: the file or the task cannot be read.
    """
    if config.input:
        from serve.bulk import read_file

        columns = config.text_column, config.pair_column
        return read_file(config.input, *columns, text_columns, problem=problem).texts
    from bertender.tasks.loading import load_task
    from bertender.tasks.task import TaskConfig

    assert config.task is not None, "a rule of the settings"
    task = load_task(TaskConfig.parse({"task": config.task}))
    return task.problem.asked(task.dev.examples)


LOWEST_RATE = 0.5
"""Lowest rate to try, in requests per second."""


class LoadConfig(TextsConfig):
    """Arrival and content of requests, and duration of the test."""

    panel: ClassVar[str] = "Load"
    main: ClassVar[tuple[str, ...]] = (
        "rate",
        "concurrency",
        "find_limit",
        "slo_p99_ms",
        "duration_s",
    )
    rules: ClassVar[Mapping[str, Rule[Any]]] = {
        "not one kind of load": Rule(
            lambda config: (
                (config.concurrency is None) != (config.rate is not None or config.find_limit)
            ),
            "--rate sends at so many requests a second, --concurrency so many at a time, "
            "--find-limit looks for the highest rate. Give one; with --find-limit, --rate is the "
            "first.",
        ),
        "a limit that nothing reads": Rule(
            lambda config: not config.find_limit,
            "it is what --find-limit looks for. Give it as well, or leave this out.",
            settings=frozenset({"slo_p99_ms"}),
        ),
        "a search that begins too low": Rule(
            lambda config: config.find_limit and config.rate < LOWEST_RATE,
            f"--find-limit looks for no rate below {LOWEST_RATE:g} requests/s. Give a higher "
            "--rate to begin with, or leave it out.",
            settings=frozenset({"rate"}),
        ),
    }

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


Outcome = Literal["ok", "rejected", "late", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "rejected", "late", "failed")
"""A response; a rejection for now; none within the timeout; any other error."""


class LoadRun(Record):
    """Results for one rate, or one number of clients."""

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
        """The rate or the number of clients, as text."""
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
    """The highest rate within a p99 limit."""

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


Read = Callable[[int, Problem[Any]], Sequence[Example]]
"""(number of texts that the model reads at once, its kind of problem) -> texts to send"""


def load_test(
    url: str, read: Read, config: LoadConfig, access: AccessConfig = NO_ACCESS
) -> LoadTest:
    """Send requests to an endpoint according to the settings, and return the measurements.

    A search that ends early returns a lower bound of the limit.

    Raises:
        MachineBusyError: other work disturbs this machine, and there is no lower bound.
        ServingError: no endpoint responds at the url, or it refuses a text.
        LoadTestError: requests were not sent in time, or no rate is within the p99 limit.
    """
    before = load_now()
    check_load(before, config.noisy)
    runs: list[LoadRun] = []
    limit = None
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        target = runner.run(_open(url, read, config, access))

        def probe(rate: float) -> LoadRun:
            runs.append(check_lag(runner.run(open_run(target.send, rate, config))))
            p99_ms = runs[-1].p99_ms
            known = "none: requests without a response" if p99_ms is None else f"{p99_ms:.3g} ms"
            bar.note(f"{rate:.4g} requests/s: p99 {known}")
            bar.advance()
            return runs[-1]

        try:
            if config.concurrency:
                runs.append(runner.run(closed_run(target.send, config.concurrency, config)))
            else:
                with progress_bar("load test", total=None if config.find_limit else 1) as bar:
                    if config.find_limit:
                        limit = find_limit(probe, config.slo_p99_ms, config.rate or FIRST_RATE)
                    else:
                        probe(config.rate or FIRST_RATE)
        finally:
            runner.run(target.sender.close())
    after = load_now()
    try:
        check_load(after, config.noisy)
    except MachineBusyError as error:
        if limit is None:
            raise
        # other work may have slowed the server down: a failed rate is not an upper bound
        limit = limit.model_copy(update={"above": None, "lower_bound": str(error)})
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
    """Measure the throughput for several numbers of clients, one after the other.

    The measurement is longer if the server is slow.

    Args:
        url: URL of an endpoint on this machine.
        read: returns the texts to send.
        loads: load settings, each with a `concurrency`.

    Raises:
        ServingError, ConfigError, LoadTestError: as for `load_test`.
    """
    runs = []
    with asyncio.Runner(loop_factory=precise_loop) as runner:
        for load in loads:
            target = runner.run(_open(url, read, load, NO_ACCESS))
            try:
                runs.append(closed_for_long_enough(runner, target.send, load))
            finally:
                runner.run(target.sender.close())
    return runs


LONGEST_S = 8.0
RESPONSES = 2
"""Fewest responses per client within the longest measurement."""


def closed_for_long_enough(runner: asyncio.Runner, send: Send, config: LoadConfig) -> LoadRun:
    """Measure clients, and once more for longer if each had hardly a response.

    With a few large batches, the number that end within a second is random.
    """
    clients, duration_s = config.concurrency or 1, config.duration_s

    def measure(duration_s: float, warmup_s: float) -> LoadRun:
        changed = config.model_copy(update={"duration_s": duration_s, "warmup_s": warmup_s})
        return runner.run(closed_run(send, clients, changed))

    try:
        run = measure(duration_s, config.warmup_s)
    except LoadTestError:  # no client has sent a second request
        return measure(max(duration_s, LONGEST_S), 0.0)
    share = run.requests_per_second * duration_s / (RESPONSES * clients)
    longer = min(LONGEST_S, duration_s / max(share, 1e-9))
    return run if longer <= duration_s else measure(longer, 0.0)


def texts_per_second(run: LoadRun) -> float:
    """Return the throughput of clients, even if every response came after the loop's end.

    Raises:
        LoadTestError: there is no response at all.
    """
    if run.texts_per_second:
        return run.texts_per_second
    samples = zip(run.intended_s, run.latency_ms, run.outcome, strict=True)
    ends = [intended + ms / 1000 for intended, ms, outcome in samples if outcome == "ok"]
    if not ends:
        raise LoadTestError(
            f"no response at all, but {run.outcomes}. The server is too slow for such requests: "
            "send fewer texts in each, or from fewer clients."
        )
    return len(ends) * run.texts_per_request / max(ends)


FIRST_RATE = 16.0
WITHIN = 0.05
"""Share by which the last passing and failing rates may differ."""


def find_limit(
    probe: Callable[[float], LoadRun], slo_p99_ms: float, first_rate: float = FIRST_RATE
) -> Limit:
    """Double the rate until it fails (or halve it until it passes), then bisect.

    Args:
        probe: measures a rate, or raises LoadTestError.
        slo_p99_ms: limit on the p99; a request without a response exceeds it.
        first_rate: first rate to try.

    Returns:
        The limit; a lower bound if a rate cannot be measured.

    Raises:
        LoadTestError: no rate passes, or none could be measured that does.
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
        if math.isinf(breaks):
            rate = 2 * holds
        else:
            rate = math.sqrt(holds * breaks) if holds else breaks / 2
    return Limit(slo_p99_ms=slo_p99_ms, rate=holds, above=breaks)


START_IN_S = 0.1
TASK_S = 50e-6
"""More than the time to create a task."""
AWAKE_S = 150e-6

Send = Callable[[int], Awaitable[Outcome]]
"""number of a request -> its outcome; requests are prepared, so it only sends and waits"""


@dataclass(frozen=True)
class Sample:
    """A request, with times in seconds."""

    intended_s: float
    """Seconds since the first request's scheduled time."""
    lag_s: float
    """Seconds from the scheduled time until it was sent."""
    latency_s: float
    """Seconds from the scheduled time until the response."""
    outcome: Outcome


def precise_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop that wakes within microseconds; the default is a millisecond late."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


def arrivals(rate: float, length_s: float, seed: int) -> list[float]:
    """Return the times of a Poisson process with `rate` per second, from 0 to `length_s`."""
    draw = np.random.default_rng(seed)
    gaps = iter(lambda: float(draw.exponential(1 / rate)), None)
    return [*itertools.takewhile(lambda at: at < length_s, itertools.accumulate(gaps))]


async def open_run(send: Send, rate: float, config: LoadConfig) -> LoadRun:
    """Measure the latency at a rate: send a request at each scheduled time."""
    loop = asyncio.get_running_loop()
    times_s = arrivals(rate, config.warmup_s + config.duration_s, config.seed)
    began = loop.time() + START_IN_S + len(times_s) * TASK_S

    async def request(number: int, intended: float) -> Sample:
        # timers are late by this much, so the end of the wait is busy; responses are read meanwhile
        await asyncio.sleep(max(began + intended - AWAKE_S - loop.time(), 0.0))
        while loop.time() < began + intended:
            await asyncio.sleep(0)
        lag_s = loop.time() - began - intended
        outcome = await send(number)
        return Sample(intended, lag_s, loop.time() - began - intended, outcome)

    with _no_collections():
        async with asyncio.TaskGroup() as group:
            # create all tasks before the first request: a new task starts later than a waking one
            tasks = [group.create_task(request(*each)) for each in enumerate(times_s)]
    return _run([task.result() for task in tasks], config, rate=rate)


async def closed_run(send: Send, concurrency: int, config: LoadConfig) -> LoadRun:
    """Measure the throughput for `concurrency` clients, each sending one request after another."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    numbers = itertools.count()
    samples = []

    async def client() -> None:
        intended = 0.0
        while intended < config.warmup_s + config.duration_s:
            lag_s = loop.time() - began - intended
            outcome = await send(next(numbers))
            ended = loop.time() - began
            samples.append(Sample(intended, lag_s, ended - intended, outcome))
            intended = ended

    with _no_collections():
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(client())
    return _run(samples, config, concurrency=concurrency)


@contextmanager
def _no_collections() -> Iterator[None]:
    """Keep the garbage collector, which takes tens of milliseconds, from delaying requests."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _run(
    samples: Sequence[Sample],
    config: LoadConfig,
    rate: float | None = None,
    concurrency: int | None = None,
) -> LoadRun:
    """Return the figures of a loop, without its warm-up."""
    start_s, end_s = config.warmup_s, config.warmup_s + config.duration_s
    measured = [each for each in samples if start_s <= each.intended_s < end_s]
    if not measured:
        raise LoadTestError(
            f"no request falls into the {config.duration_s:g} s that are measured. Send more: a "
            "higher --rate, or a longer --duration-s."
        )
    latency_ms = np.array([1000 * each.latency_s for each in measured])
    lag_ms = np.array([1000 * each.lag_s for each in measured])
    succeeded = np.array([each.outcome == "ok" for each in measured])
    # without interpolation, which fails with infinity
    lasting_ms = np.where(succeeded, latency_ms, math.inf)
    p99_ms = float(np.percentile(lasting_ms, 99, method="higher"))
    counts = Counter(each.outcome for each in measured)
    # responses within the measured time, whenever they were requested
    ends = [each.intended_s + each.latency_s for each in samples if each.outcome == "ok"]
    return LoadRun(
        rate=rate,
        concurrency=concurrency,
        texts_per_request=config.texts_per_request,
        duration_s=config.duration_s,
        outcomes={outcome: counts[outcome] for outcome in OUTCOMES},
        latency=percentiles(latency_ms[succeeded]) if succeeded.any() else None,
        p99_ms=p99_ms if math.isfinite(p99_ms) else None,
        send_lag=percentiles(lag_ms),
        requests_per_second=sum(start_s <= at < end_s for at in ends) / config.duration_s,
        intended_s=tuple(round(each.intended_s, 6) for each in measured),
        lag_ms=tuple(lag_ms.round(3).tolist()),
        latency_ms=tuple(latency_ms.round(3).tolist()),
        outcome=tuple(each.outcome for each in measured),
    )


MOST_LAG = 0.05
"""Share of the median latency; above it, the generator is measured more than the server."""


def check_lag(run: LoadRun) -> LoadRun:
    """Return a run if its requests were sent in time.

    Raises:
        LoadTestError: they were not, so its latencies are not the server's.
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


PREPARED = 1000
"""Number of different requests; then they repeat."""


@dataclass(frozen=True)
class Target:
    """A server, and the requests for it."""

    protocol: str
    model: ServedModel
    texts: int
    sender: Sender
    requests: Sequence[Request]

    async def send(self, number: int) -> Outcome:
        return await self.sender.send(self.requests[number % len(self.requests)])


async def _open(url: str, read: Read, config: LoadConfig, access: AccessConfig) -> Target:
    """Connect, prepare the requests, and send the first one to check that the server accepts it."""
    async with AsyncEndpoint(
        url, model=config.model, timeout_s=config.timeout_s, access=access
    ) as endpoint:
        model = endpoint.model
        texts = read(model.text_columns, model.problem)
        if config.texts_per_request > model.max_batch_size:
            raise ConfigError(
                f"--texts-per-request {config.texts_per_request}: the model takes at most "
                f"{model.max_batch_size} (`bertender serve --max-batch-size`)."
            )
        draw = np.random.default_rng(config.seed)
        rows = draw.integers(0, len(texts), (PREPARED, config.texts_per_request)).tolist()
        drawn = [[texts[row] for row in request] for request in rows]
        await endpoint.classify(drawn[0])
    protocol = endpoint.address.protocol
    sender = SENDERS[protocol](endpoint.address, endpoint.access, config.timeout_s)
    try:
        requests = [sender.prepare(model, model.columns(examples)) for examples in drawn]
    except BaseException:
        await sender.close()
        raise
    return Target(protocol, model, len(texts), sender, requests)


MOST_CONNECTIONS = 500
"""Fewer than the descriptors that `select` supports."""


@dataclass(frozen=True)
class Request:
    """A prepared request, ready to be sent."""

    model: str
    """Name of the model on the server."""
    body: bytes
    headers: Mapping[str, str]


class Sender(Protocol):
    """Sends prepared requests to one server, over connections that stay open."""

    def __init__(self, address: Address, access: Access, timeout_s: float) -> None: ...

    def prepare(self, model: ServedModel, columns: Columns) -> Request: ...

    async def send(self, request: Request) -> Outcome: ...

    async def close(self) -> None: ...


class HttpSender:
    """Over HTTP/1.1, with an aiohttp connection for each request in flight."""

    def __init__(self, address: Address, access: Access, timeout_s: float) -> None:
        import aiohttp  # here and below, because the clients take long to import

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
        import tritonclient.http

        inputs = model.tensors(columns, HTTP.tensor)
        generate = tritonclient.http.InferenceServerClient.generate_request_body
        body, json_size = generate(inputs, parameters=TRUNCATING)
        return Request(model.name, body, {"Inference-Header-Content-Length": str(json_size)})

    async def send(self, request: Request) -> Outcome:
        url, headers = f"{self.url}/{request.model}/infer", request.headers
        try:
            async with (
                asyncio.timeout(self.timeout_s),
                self.session.post(url, data=request.body, headers=headers) as response,
            ):
                await response.read()
        except Exception as error:
            if (failure := HTTP.failure(error)) is None:
                raise
            return _outcome(failure)
        return "ok" if response.status == 200 else _outcome(HTTP.refusal(str(response.status)))

    async def close(self) -> None:
        await self.session.close()


class GrpcSender:
    """Over one HTTP/2 connection of grpcio."""

    infer_route = "/inference.GRPCInferenceService/ModelInfer"

    def __init__(self, address: Address, access: Access, timeout_s: float) -> None:
        import grpc.aio

        self.timeout_s = timeout_s
        self.metadata = tuple(access.headers.items())
        tls, place = GRPC.credentials(access), address.host_and_port
        self.channel = (
            grpc.aio.secure_channel(place, tls, options=GRPC.channel_options)
            if tls
            else grpc.aio.insecure_channel(place, options=GRPC.channel_options)
        )
        self.infer: Any = self.channel.unary_unary(self.infer_route)  # bytes in, bytes out

    def prepare(self, model: ServedModel, columns: Columns) -> Request:
        from tritonclient.grpc import service_pb2
        from tritonclient.utils import serialize_byte_tensor

        request = service_pb2.ModelInferRequest(model_name=model.name)
        for name, value in TRUNCATING.items():
            request.parameters[name].bool_param = value
        names = input_names(len(columns), model.problem.takes_list)
        for name, column in zip(names, columns, strict=True):
            request.inputs.add(name=name, datatype="BYTES", shape=column.shape)
            request.raw_input_contents.append(serialize_byte_tensor(column).item())
        return Request(model.name, request.SerializeToString(), {})

    async def send(self, request: Request) -> Outcome:
        import grpc.aio

        try:
            await self.infer(request.body, timeout=self.timeout_s, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            return _outcome(GRPC.refusal(str(error.code()), error.details() or ""))
        return "ok"

    async def close(self) -> None:
        await self.channel.close()


def _outcome(failure: Failure) -> Outcome:
    outcomes: dict[Failure, Outcome] = {OVERLOADED: "rejected", LATE: "late"}
    return outcomes.get(failure, "failed")


SENDERS: Mapping[str, type[Sender]] = {"http": HttpSender, "grpc": GrpcSender}
"""Senders by name of the protocol."""


WIDTH, HEIGHT, MARGIN = 560, 320, 48
BLUE, ORANGE, GREY, BLACK = "#0072b2", "#d55e00", "#666666", "#000000"
"""Colours that are also distinct for red-green colour-blind people (Okabe and Ito)."""
NINES = (0.0, 50.0, 90.0, 99.0, 99.9)
POINTS = 60


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False


def load_svg(test: LoadTest) -> str:
    """Draw a load test: for several rates, p50 and p99 over rate; for one, latency over
    percentile."""
    runs = sorted((run for run in test.runs if run.rate is not None), key=lambda run: run.rate or 0)
    if len(runs) < 2 and not test.limit:
        return _by_percentile(test.runs[0])
    furthest = runs[-1].rate or 0.0
    lines = [
        Line("p50", BLUE, [(run.rate or 0, run.latency.p50_ms) for run in runs if run.latency]),
        Line("p99", ORANGE, [(run.rate or 0, run.p99_ms) for run in runs if run.p99_ms]),
    ]
    if test.limit:
        rate, p99_ms = test.limit.rate, test.limit.slo_p99_ms
        ends = [(0.0, p99_ms), (furthest, p99_ms)]
        lines.append(Line(f"limit of the p99: {p99_ms:g} ms", GREY, ends, dashed=True))
        if test.limit.lower_bound:
            words = f"at least {rate:.4g} requests/s: a lower bound"
            lines.append(Line(words, BLACK, [(rate, 0.0), (rate, p99_ms)], dashed=True))
    marks = {part * furthest: f"{part * furthest:.3g}" for part in (0.0, 0.25, 0.5, 0.75, 1.0)}
    texts = runs[0].texts_per_request
    return _svg(f"latency (ms) by requests a second, {texts} texts each", lines, marks)


def _by_percentile(run: LoadRun) -> str:
    """Draw a run up to the share of its requests with a response; each further nine of the
    percentile has the same width."""
    outcomes = zip(run.latency_ms, run.outcome, strict=True)
    lasting_ms = [ms if outcome == "ok" else math.inf for ms, outcome in outcomes]
    nines = {percentile: -math.log10(1 - percentile / 100) for percentile in NINES}
    depths = np.linspace(0.0, nines[NINES[-1]], POINTS)
    percentages = 100 * (1 - 10**-depths)
    latency_ms = np.percentile(lasting_ms, percentages, method="higher")
    drawn = np.isfinite(latency_ms)
    points = list(zip(depths[drawn].tolist(), latency_ms[drawn].tolist(), strict=True))
    title = f"latency (ms) by percentile, {run.load} of {run.texts_per_request} texts"
    marks = {place: f"p{percentile:g}" for percentile, place in nines.items()}
    return _svg(title, [Line("latency", BLUE, points)], marks)


def _svg(title: str, lines: Sequence[Line], marks: Mapping[float, str]) -> str:
    """Draw lines; `marks` are those of the horizontal axis: position -> label."""
    widest = max(marks) or 1.0
    highest = max((y for line in lines for _, y in line.points), default=0.0) or 1.0
    right, bottom = WIDTH - MARGIN, HEIGHT - MARGIN

    def across(x: float) -> float:
        return MARGIN + x / widest * (WIDTH - 2 * MARGIN)

    def upward(y: float) -> float:
        return bottom - y / highest * (HEIGHT - 2 * MARGIN)

    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="11" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n'
        f'<text x="{MARGIN}" y="20" font-size="13">{escape(title)}</text>',
        f'<path d="M{MARGIN} {MARGIN} V{bottom} H{right}" fill="none" stroke="#333333"/>',
    ]
    for at, words in marks.items():
        drawn.append(
            f'<text x="{across(at):.1f}" y="{bottom + 16}" text-anchor="middle">{words}</text>'
        )
    for value in (0.0, 0.5 * highest, highest):
        place = f'x="{MARGIN - 6}" y="{upward(value) + 4:.1f}"'
        drawn.append(f'<text {place} text-anchor="end">{value:.3g}</text>')
    for row, line in enumerate(lines):
        path = " ".join(f"{across(x):.1f},{upward(y):.1f}" for x, y in line.points)
        dashes = ' stroke-dasharray="5 4"' if line.dashed else ""
        if path:
            drawn.append(
                f'<polyline fill="none" stroke="{line.colour}" stroke-width="2"{dashes} '
                f'points="{path}"/>'
            )
        drawn.append(
            f'<text x="{MARGIN + 10}" y="{MARGIN + 14 + 16 * row}" fill="{line.colour}">'
            f"{escape(line.name)}</text>"
        )
    return "\n".join([*drawn, "</svg>", ""])
