"""SERVERS of one model, each started on loopback and asked with requests that are made before.

All of them run the same file, in ONNX Runtime where the title names no other, and on the CPU with
as many threads as they may use cores. A server has one core and the generator of its load another,
so that neither takes the other's, unless both have all.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import numpy as np
import psutil
import tokenizers
import typer

from benchmarks.bare_triton import HOST, READY_TIMEOUT_S, bare_triton
from benchmarks.plain_servers import ARTIFACT_VARIABLE, LENGTH_VARIABLE
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ModelError, RuntimeMissingError, ServingError
from bertender.models.classifier import onnx_file
from bertender.models.runtimes import RUNTIMES, suits
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.tasks.loading import load_task
from bertender.tasks.task import TaskConfig
from serve import loadtest
from serve.client.access import AccessConfig, open_access, parse_url
from serve.client.endpoint import ServedModel
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.server.addresses import free_ports
from serve.server.server import Server as RunningServer
from serve.server.server import serving
from serve.server.supervisor import STUB_NAME
from serve.wire import MODEL_NAME

Pin = Annotated[bool, typer.Option(help="server on core 0, all else on core 1")]
TaskName = Annotated[str, typer.Option(help="its held-out texts are sent")]

TIMEOUT_S = 120.0
"""Longest wait for a response: a full batch of padded texts takes seconds on one core."""
PREPARED = 500
"""Different requests of a load; then the first comes again."""
LONGEST_TOKENS = 256
"""Length that a repository of a fixed length pads to."""
ANY_PORTS = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
SERVED = ServedModel(max_batch_size=64, text_columns=1, problem=SINGLE_LABEL, digest="")


@dataclass(frozen=True)
class Pins:
    """Cores by number; None where a process may use all of them."""

    server: int | None = None
    generator: int | None = None


def pins_of(pin: bool) -> Pins:
    """Return cores 0 and 1, or none.

    Raises:
        ConfigError: one of them is not this process's to use.
    """
    if pin and not {0, 1} <= os.sched_getaffinity(0):
        raise ConfigError("server and generator need cores 0 and 1: give --no-pin.")
    return Pins(0, 1) if pin else Pins()


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run the block, and the processes and threads that begin in it, on one core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def texts_of(task: str) -> list[str]:
    """Return the held-out texts of a task."""
    return [example[0] for example in load_task(TaskConfig(task=task)).dev.examples]


def token_counter(artifact: Artifact) -> Callable[[str], int]:
    """Return a function from a text to its tokens."""
    tokenizer = tokenizers.Tokenizer.from_file(str(artifact.path / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return lambda text: len(tokenizer.encode(text).ids)


def servable(path: Path) -> Artifact:
    """Open an artifact.

    Raises:
        ModelError: no server of single texts runs it.
    """
    artifact = Artifact.load(path)
    columns = artifact.card.task.text_columns
    if artifact.card.kind != "onnx" or len(columns) != 1:
        raise ModelError(
            f"{artifact.path} is a {artifact.card.kind!r} artifact of {len(columns)} text columns; "
            "this benchmark serves 'onnx' artifacts of one. Export it first: `bertender export`."
        )
    return artifact


def facts_of(artifact: Artifact) -> dict[str, Any]:
    """Return the facts of a served model for a record."""
    card = artifact.card
    return {"task": card.task.name, "model": artifact.name, "precision": card.precision}


@dataclass(frozen=True)
class Service:
    """Settings with which a server is started."""

    artifact: Artifact
    longest: int
    """Tokens at which a text is cut."""
    workload: int
    """Tokens of the longest text of this workload, rounded up."""

    @property
    def maximum(self) -> int:
        """Tokens that a repository of a fixed length pads to, so that it takes every workload."""
        return min(self.longest, LONGEST_TOKENS)


class Client:
    """Sends prepared requests over HTTP/1.1, with JSON that was written before."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/classify"
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=500),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def prepare(self, texts: Sequence[str]) -> loadtest.Request:
        return loadtest.Request("", json.dumps({"texts": list(texts)}).encode(), {})

    async def send(self, request: loadtest.Request) -> loadtest.Outcome:
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self.session.post(self.url, data=request.body) as response,
            ):
                await response.read()
        except TimeoutError:
            return "late"
        except (OSError, aiohttp.ClientError):
            return "failed"
        return "ok" if response.status == 200 else "failed"

    async def close(self) -> None:
        await self.session.close()


class TritonClient(Client):
    """Sends prepared requests over the protocol of a url."""

    def __init__(self, url: str) -> None:
        address = parse_url(url)
        send = loadtest.SENDERS[address.protocol]
        self.sender = send(address, open_access(address, AccessConfig()), TIMEOUT_S)

    def prepare(self, texts: Sequence[str]) -> loadtest.Request:
        return self.sender.prepare(SERVED, SERVED.columns([(text,) for text in texts]))

    async def send(self, request: loadtest.Request) -> loadtest.Outcome:
        return await self.sender.send(request)

    async def close(self) -> None:
        await self.sender.close()


class Server:
    """A kind of server."""

    title: str

    def serves(self, service: Service) -> bool:
        """Return whether it can serve the artifact here, and differs from the rows above it."""
        return True

    def start(self, service: Service) -> AbstractContextManager[Callable[[], Client]]:
        """Start the server; inside the block it is ready, and a function opens clients."""
        raise NotImplementedError


@dataclass(frozen=True)
class Own(Server):
    """The endpoint of bertender."""

    title: str
    protocol: str = "grpc"
    server: str = "triton"
    runtime: str = "onnxruntime"

    def serves(self, service: Service) -> bool:
        if not suits(self.runtime, service.artifact):
            return False
        try:
            RUNTIMES[self.runtime].open(onnx_file(service.artifact), 1)
        except (ModelError, RuntimeMissingError):
            return False
        return True

    @contextmanager
    def start(self, service: Service) -> Iterator[Callable[[], Client]]:
        settings = ServeConfig.parse({**ANY_PORTS, "runtime": self.runtime, "server": self.server})
        with serving(service.artifact, settings) as server:
            url = server.http_url if self.protocol == "http" else server.grpc_url
            yield lambda: TritonClient(url)


class TritonAlone(Server):
    """Triton, which anybody reaches."""

    def write(self, models: Path, service: Service) -> None:
        """Write the repository."""
        raise NotImplementedError

    @contextmanager
    def start(self, service: Service) -> Iterator[Callable[[], Client]]:
        with tempfile.TemporaryDirectory(prefix="bertender-serving-") as folder:
            models = Path(folder) / "models"
            self.write(models, service)
            with bare_triton(models, Path(folder) / "run") as triton:
                yield lambda: TritonClient(triton.grpc_url)


class WithoutDoor(TritonAlone):
    """The model repository of bertender."""

    title = "its model in Triton, without the door"

    def write(self, models: Path, service: Service) -> None:
        write_repository(service.artifact, models, ServeConfig())


@dataclass(frozen=True)
class PlainTriton(TritonAlone):
    """`PlainModel` in the Python backend."""

    title: str
    max_batch_size: int
    padded: Callable[[Service], int]
    """Tokens of every text; 0 for the longest of a batch."""

    def serves(self, service: Service) -> bool:
        return self.title != PADDED_TO_LONGEST or service.workload < service.maximum

    def write(self, models: Path, service: Service) -> None:
        version = models / MODEL_NAME / "1"
        version.mkdir(parents=True)
        (version / "model.py").write_text(MODEL_FILE, encoding="utf-8")
        rows = "" if self.max_batch_size else "-1, "
        values = {
            "artifact": str(service.artifact.path.resolve()),
            "max_length": str(service.longest),
            "padded_length": str(self.padded(service)),
        }
        labels = len(service.artifact.card.task.labels)
        lines = [
            f'name: "{MODEL_NAME}"',
            'backend: "python"',
            f"max_batch_size: {self.max_batch_size}",
            f'input {{ name: "TEXT" data_type: TYPE_STRING dims: [{rows}1] }}',
            f'output {{ name: "LOGITS" data_type: TYPE_FP32 dims: [{rows}{labels}] }}',
            "instance_group { kind: KIND_CPU count: 1 }",
            *(
                f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
                for key, value in values.items()
            ),
            *(["dynamic_batching {}"] if self.max_batch_size else []),
        ]
        config = models / MODEL_NAME / "config.pbtxt"
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")


MODEL_FILE = """\
import os
import sys

sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))

from benchmarks.plain_servers import TritonPythonModel
"""


class FastApi(Server):
    """`PlainModel` behind FastAPI."""

    title = "FastAPI"

    def serves(self, service: Service) -> bool:
        return all(map(find_spec, ("fastapi", "uvicorn")))

    @contextmanager
    def start(self, service: Service) -> Iterator[Callable[[], Client]]:
        port = free_ports(HOST, {"port": 0})[1]["port"]
        url = f"http://{HOST}:{port}"
        settings = {
            ARTIFACT_VARIABLE: str(service.artifact.path.resolve()),
            LENGTH_VARIABLE: str(service.longest),
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        module = ("uvicorn", "benchmarks.plain_servers:fastapi_app", "--factory")
        options = ("--host", HOST, "--port", str(port), "--log-level", "warning")
        process = subprocess.Popen(
            [sys.executable, "-m", *module, *options], env={**os.environ, **settings}
        )
        try:
            _wait_until_ready(process, f"{url}/ready")
            yield lambda: Client(url)
        finally:
            process.terminate()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - of this machine
                return
        except OSError:
            time.sleep(0.05)
    raise ServingError(f"no server is ready at {url}, status {process.poll()}. See its output.")


PADDED_TO_LONGEST = "Triton, padded to the longest text"
SERVERS: Mapping[str, Server] = {
    "bertender": Own("bertender"),
    "bertender-http": Own("bertender, over HTTP", "http"),
    "bertender-embedded": Own("bertender, embedded", server="embedded"),
    "bertender-embedded-http": Own("bertender, embedded, over HTTP", "http", "embedded"),
    "without-door": WithoutDoor(),
    "bertender-openvino": Own("bertender, OpenVINO", runtime="openvino"),
    "bertender-cuda": Own("bertender, on the GPU", runtime="onnxruntime-cuda"),
    "padded": PlainTriton("Triton, padded to the maximum", 64, lambda service: service.maximum),
    "padded-to-longest": PlainTriton(PADDED_TO_LONGEST, 64, lambda service: service.workload),
    "unbatched": PlainTriton("Triton, `max_batch_size: 0`", 0, lambda service: 0),
    "fastapi": FastApi(),
}


@dataclass(frozen=True)
class Asked:
    """A server that is ready, and the texts that it is sent."""

    opened: Callable[[], Client]
    texts: Sequence[str]
    pins: Pins

    def closed(
        self, texts: int, clients: int, duration_s: float, warmup_s: float = 0.3
    ) -> loadtest.LoadRun:
        """Measure the throughput of clients that each wait; for longer where a server is slow."""
        config = loadtest.LoadConfig(
            concurrency=clients, texts_per_request=texts, duration_s=duration_s, warmup_s=warmup_s
        )
        with self._asked(texts) as (runner, send):
            return loadtest.closed_for_long_enough(runner, send, config)

    def at_rate(self, rate: float, duration_s: float, warmup_s: float = 0.3) -> loadtest.LoadRun:
        """Measure the latency of single texts at a rate."""
        config = loadtest.LoadConfig(rate=rate, duration_s=duration_s, warmup_s=warmup_s)
        with self._asked(1) as (runner, send):
            return runner.run(loadtest.open_run(send, rate, config))

    @contextmanager
    def _asked(self, size: int) -> Iterator[tuple[asyncio.Runner, Any]]:
        """Open a connection from the generator's core, with requests of `size` texts."""
        with (
            pinned(self.pins.generator),
            asyncio.Runner(loop_factory=loadtest.precise_loop) as runner,
        ):
            client = runner.run(self._client())
            draw = np.random.default_rng(0)
            rows = draw.integers(0, len(self.texts), (PREPARED, size)).tolist()
            requests = [client.prepare([self.texts[row] for row in each]) for each in rows]

            async def send(number: int) -> loadtest.Outcome:
                return await client.send(requests[number % len(requests)])

            try:
                yield runner, send
            finally:
                runner.run(client.close())

    async def _client(self) -> Client:
        """Return a client that is opened inside an event loop."""
        return self.opened()


@contextmanager
def started(server: Server, service: Service, texts: Sequence[str], pins: Pins) -> Iterator[Asked]:
    """Start a server on its core; it is ready inside the block."""
    with ExitStack() as stack:
        with pinned(pins.server):
            opened = stack.enter_context(server.start(service))
        yield Asked(opened, texts, pins)


@contextmanager
def endpoint(
    artifact: Artifact, texts: Sequence[str], pins: Pins, over_http: bool = False, **settings: Any
) -> Iterator[tuple[RunningServer, Asked]]:
    """Start our own endpoint on its core."""
    with ExitStack() as stack:
        with pinned(pins.server):
            config = ServeConfig.parse({**ANY_PORTS, **settings})
            server = stack.enter_context(serving(artifact, config))
        url = server.http_url if over_http else server.grpc_url
        yield server, Asked(lambda: TritonClient(url), texts, pins)


ROLES = {STUB_NAME: "stub", "tritonserver": "server"}
"""Name of a process -> its role; any other process is the door or the supervisor."""


def role_of(name: str) -> str:
    """Return the role of a process; the kernel cuts names to 15 bytes."""
    return next((role for start, role in ROLES.items() if start[:15] == name[:15]), "supervisor")


def memory_of(server: RunningServer) -> dict[str, int]:
    """Return the resident bytes of a server's processes, by role."""
    assert server.door is not None
    door = psutil.Process(server.door.pid)
    sizes = dict.fromkeys((*ROLES.values(), "supervisor"), 0)
    for process in door.children(recursive=True):
        sizes[role_of(process.name())] += process.memory_info().rss
    return {**sizes, "door": door.memory_info().rss}


def outcomes(run: loadtest.LoadRun) -> dict[str, Any]:
    """Return the outcomes of requests at a rate, as a record has them."""
    return {
        "p50_ms": run.latency.p50_ms if run.latency else None,
        "p99_ms": run.p99_ms,
        "outcomes": dict(run.outcomes),
        "lag_share": min(run.lag_share, 1.0),
    }
