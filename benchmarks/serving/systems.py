"""SYSTEMS: servers of one model, each started on loopback and asked with prepared requests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tritonclient.grpc import model_config_pb2 as triton

from benchmarks.serving.clients import HttpClient, Open, TritonClient
from benchmarks.serving.http_server import free_port, http_server
from bertender.core.artifact import Artifact
from bertender.core.config import Table
from bertender.core.errors import ModelError, RuntimeMissingError
from bertender.models.opening import onnx_file
from bertender.models.runtimes import RUNTIMES, suits
from serve.config import ServeConfig
from serve.repository.config_pbtxt import CONFIG_NAME, write_model_config
from serve.repository.write import write_repository
from serve.server.server import TritonServer
from serve.server.workspace import Workspace
from serve.wire import MODEL_NAME

__all__ = [
    "OWN",
    "OWN_ON_GPU",
    "PADDED",
    "PORTS",
    "SYSTEMS",
    "Service",
    "System",
    "temporary_folder",
    "write_python_model",
]

PORTS = ServeConfig(http_port=0, grpc_port=0, metrics_port=0)
IN_OPENVINO = PORTS.changed({"runtime": "openvino"})
ON_GPU = PORTS.changed({"runtime": "onnxruntime-cuda"})

PLAIN_MODEL = "benchmarks.plain_servers.triton_model"

MODEL_FILE = """\
import os
import sys

sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))

from {module} import TritonPythonModel
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


@dataclass(frozen=True)
class System:
    """A row of SYSTEMS."""

    title: str
    start: Callable[[Service], AbstractContextManager[Open]]
    """Ready inside of the block; gives what opens a connection to it."""
    is_another: Callable[[Service], bool] = lambda service: True
    """Whether it differs from the rows above it, and can serve the artifact."""
    needs: tuple[str, ...] = ()
    """Packages beyond the extra `serve`."""

    @property
    def missing(self) -> list[str]:
        """The packages that are not installed."""
        return [name for name in self.needs if find_spec(name) is None]


def _bertender(
    url: Callable[[TritonServer], str], config: ServeConfig = PORTS
) -> Callable[[Service], Any]:
    """Return what starts our own server, which is asked at one of its addresses."""

    @contextmanager
    def start(service: Service) -> Iterator[Open]:
        with temporary_folder() as folder:
            repository = write_repository(service.artifact, folder / "models", config)
            with TritonServer(repository, config, Workspace(folder / "run")) as server:
                yield lambda: TritonClient(url(server))

    return start


def _opens(artifact: Artifact, runtime: str) -> bool:
    """Return whether a runtime can run the graph here, as it was made to run."""
    if not suits(runtime, artifact):
        return False
    try:
        RUNTIMES[runtime].open(onnx_file(artifact), 1)
    except (ModelError, RuntimeMissingError):
        return False
    return True


def _triton(max_batch_size: int, padded: Callable[[Service], int]) -> Callable[[Service], Any]:
    """Return what starts Triton with the plain model; padded to 0, it pads to the longest."""

    @contextmanager
    def start(service: Service) -> Iterator[Open]:
        with temporary_folder() as folder:
            _write_plain(folder / "models", service, max_batch_size, padded(service))
            with TritonServer(folder / "models", PORTS, Workspace(folder / "run")) as server:
                yield lambda: TritonClient(server.grpc_url)

    return start


def _write_plain(folder: Path, service: Service, max_batch_size: int, padded: int) -> None:
    values = {
        "artifact": str(service.artifact.path.resolve()),
        "max_length": str(service.longest),
        "padded_length": str(padded),
    }
    outputs = {"LOGITS": ("FP32", len(service.artifact.card.task.labels))}
    write_python_model(folder, PLAIN_MODEL, outputs, values, max_batch_size)


def write_python_model(
    folder: Path,
    module: str,
    outputs: Mapping[str, tuple[str, int]],
    parameters: Mapping[str, str],
    max_batch_size: int = 64,
) -> None:
    """Write a repository of one model: TEXT in, and the outputs, for Triton's Python backend.

    Args:
        folder: of the repository.
        module: has the class TritonPythonModel.
        outputs: name -> data type, and values of a text.
        parameters: of the model.
        max_batch_size: of Triton; with 0 it merges nothing.
    """
    version = folder / MODEL_NAME / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL_FILE.format(module=module), encoding="utf-8")
    rows = [] if max_batch_size else [-1]
    config = triton.ModelConfig(
        name=MODEL_NAME,
        backend="python",
        max_batch_size=max_batch_size,
        input=[
            triton.ModelInput(name="TEXT", data_type=triton.TYPE_STRING, dims=[*rows, 1]),
        ],
        output=[
            triton.ModelOutput(
                name=name, data_type=getattr(triton, f"TYPE_{kind}"), dims=[*rows, values]
            )
            for name, (kind, values) in outputs.items()
        ],
        instance_group=[
            triton.ModelInstanceGroup(kind=triton.ModelInstanceGroup.KIND_CPU, count=1)
        ],
        parameters={
            name: triton.ModelParameter(string_value=value) for name, value in parameters.items()
        },
    )
    if max_batch_size:
        config.dynamic_batching.SetInParent()
    write_model_config(folder / MODEL_NAME / CONFIG_NAME, config)


@contextmanager
def _fastapi(service: Service) -> Iterator[Open]:
    port = free_port()
    where = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning")
    words = ("uvicorn", "benchmarks.plain_servers.fastapi_app:app", "--factory", *where)
    with _http(service, words, port, "ready") as opened:
        yield opened


@contextmanager
def _litserve(service: Service) -> Iterator[Open]:
    port = free_port()
    with _http(
        service, ("benchmarks.plain_servers.litserve_app", str(port)), port, "health"
    ) as opened:
        yield opened


@contextmanager
def _http(service: Service, words: Sequence[str], port: int, ready: str) -> Iterator[Open]:
    url = f"http://127.0.0.1:{port}"
    with http_server(service.artifact.path, service.longest, words, url, ready):
        yield lambda: HttpClient(url)


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """Make a folder that is removed after the block."""
    folder = Path(tempfile.mkdtemp(prefix="bertender-serving-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


OWN, OWN_ON_GPU, PADDED = "bertender", "bertender-cuda", "padded"

SYSTEMS = Table(
    "server",
    {
        OWN: System("bertender", _bertender(lambda server: server.grpc_url)),
        "bertender-http": System(
            "bertender, over HTTP", _bertender(lambda server: server.http_url)
        ),
        "bertender-openvino": System(
            "bertender, OpenVINO",
            _bertender(lambda server: server.grpc_url, IN_OPENVINO),
            is_another=lambda service: _opens(service.artifact, IN_OPENVINO.runtime),
            needs=("openvino",),
        ),
        OWN_ON_GPU: System(
            "bertender, on the GPU",
            _bertender(lambda server: server.grpc_url, ON_GPU),
            is_another=lambda service: _opens(service.artifact, ON_GPU.runtime),
        ),
        PADDED: System(
            "Triton, padded to the maximum", _triton(64, lambda service: service.maximum)
        ),
        "padded-to-longest": System(
            "Triton, padded to the longest text of the workload",
            _triton(64, lambda service: service.workload),
            is_another=lambda service: service.workload < service.maximum,
        ),
        "unbatched": System("Triton, `max_batch_size: 0`", _triton(0, lambda service: 0)),
        "fastapi": System("FastAPI and uvicorn", _fastapi, needs=("fastapi", "uvicorn")),
        "litserve": System("LitServe", _litserve, needs=("litserve",)),
    },
)
"""All of them run the same file, in ONNX Runtime where their title names no other, and on the CPU
with as many threads as they may use cores where it names no GPU."""
