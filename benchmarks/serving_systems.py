"""SYSTEMS: servers of one model, each started on loopback and asked with prepared requests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import aiohttp
from tritonclient.grpc import model_config_pb2 as triton

from benchmarks.rivals.plain_model import ARTIFACT_VARIABLE, LENGTH_VARIABLE
from bertender.core.artifact import Artifact
from bertender.core.errors import ServingError
from bertender.problems import SINGLE_LABEL
from serve.client.access import NO_ACCESS, open_access
from serve.client.address import parse_url
from serve.client.served_model import ServedModel
from serve.config import ServeConfig
from serve.loadtest.records import Outcome
from serve.loadtest.senders import SENDERS, Request
from serve.repository import write_repository
from serve.server import TritonServer
from serve.triton_config import CONFIG_NAME, write_model_config
from serve.wire import MODEL_NAME, to_arrays

__all__ = [
    "OWN",
    "PADDED",
    "READY_TIMEOUT_S",
    "SYSTEMS",
    "Asker",
    "Open",
    "Service",
    "System",
    "TritonAsker",
    "child_environment",
]

PORTS = ServeConfig(http_port=0, grpc_port=0, metrics_port=0)
TIMEOUT_S = 120.0
"""Of a request: a full batch of padded texts takes seconds on one core."""
READY_TIMEOUT_S = 120.0
MODEL = ServedModel(max_batch_size=64, text_columns=1, problem=SINGLE_LABEL, digest="")

MODEL_FILE = """\
import os
import sys

sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))

from benchmarks.rivals.triton_model import TritonPythonModel
"""


@dataclass(frozen=True)
class Service:
    """Settings that a server is started with."""

    artifact: Artifact
    longest: int
    """Tokens at which a text is cut."""
    maximum: int
    """Tokens that a repository of a fixed length pads to, so that it takes every workload."""
    workload: int
    """Tokens of the longest text of this workload, rounded up."""


class Asker:
    """Sends prepared requests to a server, inside of an event loop."""

    def prepare(self, texts: Sequence[str]) -> Request:
        raise NotImplementedError

    async def send(self, request: Request) -> Outcome:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class TritonAsker(Asker):
    """Over the url's protocol, with a request that was serialised before."""

    def __init__(self, url: str) -> None:
        address = parse_url(url)
        send = SENDERS[address.protocol.name]
        self.sender = send(address, open_access(address, NO_ACCESS), TIMEOUT_S)

    def prepare(self, texts: Sequence[str]) -> Request:
        return self.sender.prepare(MODEL, to_arrays([(text,) for text in texts], text_columns=1))

    async def send(self, request: Request) -> Outcome:
        return await self.sender.send(request)

    async def close(self) -> None:
        await self.sender.close()


class HttpAsker(Asker):
    """Over HTTP/1.1, with JSON that was written before."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/classify"
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=500),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def prepare(self, texts: Sequence[str]) -> Request:
        return Request("", json.dumps({"texts": list(texts)}).encode(), {})

    async def send(self, request: Request) -> Outcome:
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


Open = Callable[[], Asker]


@dataclass(frozen=True)
class System:
    """A row of SYSTEMS."""

    title: str
    start: Callable[[Service], AbstractContextManager[Open]]
    """Ready inside of the block; gives what opens a connection to it."""
    is_another: Callable[[Service], bool] = lambda service: True
    """Whether it differs from the rows above it."""
    needs: tuple[str, ...] = ()
    """Packages beyond the extra `serve`."""

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


@contextmanager
def _bertender(service: Service) -> Iterator[Open]:
    with _folder() as folder:
        repository = write_repository(service.artifact, folder / "models", PORTS)
        with TritonServer(repository, PORTS, folder / "run") as server:
            yield lambda: TritonAsker(server.grpc_url)


def _triton(max_batch_size: int, padded: Callable[[Service], int]) -> Callable[[Service], Any]:
    """Return what starts Triton with the plain model; padded to 0, it pads to the longest."""

    @contextmanager
    def start(service: Service) -> Iterator[Open]:
        with _folder() as folder:
            _write_plain(folder / "models", service, max_batch_size, padded(service))
            with TritonServer(folder / "models", PORTS, folder / "run") as server:
                yield lambda: TritonAsker(server.grpc_url)

    return start


def _write_plain(folder: Path, service: Service, max_batch_size: int, padded: int) -> None:
    version = folder / MODEL_NAME / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL_FILE, encoding="utf-8")
    labels = len(service.artifact.card.task.labels)
    rows = [] if max_batch_size else [-1]
    values = {
        "artifact": str(service.artifact.path.resolve()),
        "max_length": str(service.longest),
        "padded_length": str(padded),
    }
    config = triton.ModelConfig(
        name=MODEL_NAME,
        backend="python",
        max_batch_size=max_batch_size,
        input=[
            triton.ModelInput(name="TEXT", data_type=triton.TYPE_STRING, dims=[*rows, 1]),
        ],
        output=[
            triton.ModelOutput(name="LOGITS", data_type=triton.TYPE_FP32, dims=[*rows, labels])
        ],
        instance_group=[
            triton.ModelInstanceGroup(kind=triton.ModelInstanceGroup.KIND_CPU, count=1)
        ],
        parameters={
            name: triton.ModelParameter(string_value=value) for name, value in values.items()
        },
    )
    if max_batch_size:
        config.dynamic_batching.SetInParent()
    write_model_config(folder / MODEL_NAME / CONFIG_NAME, config)


@contextmanager
def _fastapi(service: Service) -> Iterator[Open]:
    port = _free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning")
    words = ("uvicorn", "benchmarks.rivals.fastapi_app:app", "--factory", *where)
    with _http(service, words, f"http://127.0.0.1:{port}", "ready") as opened:
        yield opened


@contextmanager
def _litserve(service: Service) -> Iterator[Open]:
    port = _free_port()
    words = ("benchmarks.rivals.litserve_app", str(port))
    with _http(service, words, f"http://127.0.0.1:{port}", "health") as opened:
        yield opened


@contextmanager
def _http(service: Service, words: Sequence[str], url: str, ready: str) -> Iterator[Open]:
    """Run a module with its arguments as a server of `PlainModel`, ready inside of the block."""
    process = subprocess.Popen(
        [sys.executable, "-m", *words],
        env={
            **child_environment(),
            ARTIFACT_VARIABLE: str(service.artifact.path.resolve()),
            LENGTH_VARIABLE: str(service.longest),
        },
        start_new_session=True,
    )
    try:
        _wait_until_ready(process, f"{url}/{ready}")
        yield lambda: HttpAsker(url)
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the leader of a session, and what is left of it: LitServe has processes of its own."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=20)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def child_environment() -> dict[str, str]:
    """Return the environment of a Python process that imports what this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=2):  # noqa: S310 - of this machine
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    raise ServingError(f"no server is ready at {url}, status {process.poll()}")


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="bertender-serving-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


OWN, PADDED = "bertender", "padded"

SYSTEMS: Mapping[str, System] = {
    OWN: System("bertender", _bertender),
    PADDED: System("Triton, padded to the maximum", _triton(64, lambda service: service.maximum)),
    "padded-to-longest": System(
        "Triton, padded to the longest text of the workload",
        _triton(64, lambda service: service.workload),
        is_another=lambda service: service.workload < service.maximum,
    ),
    "unbatched": System("Triton, `max_batch_size: 0`", _triton(0, lambda service: 0)),
    "fastapi": System("FastAPI and uvicorn", _fastapi, needs=("fastapi", "uvicorn")),
    "litserve": System("LitServe", _litserve, needs=("litserve",)),
}
"""All of them run the same file in ONNX Runtime, with as many threads as they may use cores."""
