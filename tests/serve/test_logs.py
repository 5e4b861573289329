"""What the log of a running server never has, and what of it outlives a crash."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ServingError
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.server import TritonServer
from tests.serve.routes import ask_http
from tests.served import ANY_PORTS

SECRET = "MARKED8c1f"
INFER = "/v2/models/classifier/infer"


def request_of(data: Any, name: str = "TEXT", **changes: Any) -> bytes:
    tensor = {"name": name, "datatype": "BYTES", "shape": [1, 1], "data": data, **changes}
    return json.dumps({"inputs": [tensor]}, ensure_ascii=False).encode()


BODIES: Mapping[str, tuple[str, bytes, Mapping[str, str]]] = {
    "a text": (INFER, request_of([SECRET]), {}),
    "emoji and right to left": (INFER, request_of([f"🍐 {SECRET} שלום"]), {}),
    "a text longer than the model takes": (INFER, request_of([f"{SECRET} " * 999]), {}),
    "a megabyte": (INFER, request_of([SECRET * 2**17]), {}),
    "NUL bytes": (INFER, request_of([f"\0{SECRET}\0"]), {}),
    "bytes that are no UTF-8": (INFER, request_of([SECRET]).replace(b"8c", b"\xff\xfe"), {}),
    "JSON that is not": (INFER, request_of([SECRET])[:-2], {}),
    "deep JSON": (INFER, b"[" * 60 + SECRET.encode() + b"]" * 60, {}),
    "an input of another name": (INFER, request_of([SECRET], name=SECRET), {}),
    "another type": (INFER, request_of([SECRET], datatype="FP32"), {}),
    "another shape": (INFER, request_of([SECRET], shape=[1, 2]), {}),
    "no text at all": (INFER, request_of([SECRET], shape=[0, 1]), {}),
    "a batch over the limit": (INFER, request_of([SECRET] * 999, shape=[999, 1]), {}),
    "a pair": (INFER, request_of([SECRET] * 2, shape=[2]), {}),
    "another model": (f"/v2/models/{SECRET}/infer", request_of([SECRET]), {}),
    "a parameter": (f"{INFER}?{SECRET}={SECRET}", request_of([SECRET]), {SECRET: SECRET}),
    "a compressed body": (
        INFER,
        gzip.compress(request_of([SECRET])),
        {"Content-Encoding": "gzip"},
    ),
    "a compressed body that is not": (INFER, request_of([SECRET]), {"Content-Encoding": "gzip"}),
    "a header without its JSON": (
        INFER,
        SECRET.encode() * 9,
        {"Inference-Header-Content-Length": "9"},
    ),
}
"""Path, body and headers of requests over HTTP, right ones and wrong ones."""

TENSORS = {
    "a text": [[SECRET.encode()]],
    "bytes that are no UTF-8": [[b"\xff\xfe" + SECRET.encode()]],
    "NUL bytes": [[b"\0" + SECRET.encode()]],
    "a batch over the limit": [[SECRET.encode()]] * 999,
    "a wrong shape": [[SECRET.encode()] * 3],
}
"""Texts over gRPC."""


def text_statuses(server: TritonServer) -> Iterator[int]:
    for path, body, headers in BODIES.values():
        yield ask_http(server.config.http_port, "POST", path, body, headers)[0]
    with tritonclient.grpc.InferenceServerClient(server.grpc_url[7:]) as client:
        for texts in TENSORS.values():
            array = np.array(texts, dtype=np.object_)
            tensor = tritonclient.grpc.InferInput("TEXT", array.shape, "BYTES")
            tensor.set_data_from_numpy(array)
            try:
                client.infer("classifier", [tensor])
                yield 200
            except InferenceServerException:
                yield 400


@pytest.fixture
def repository(onnx_artifact: Artifact, tmp_path: Path) -> Path:
    return write_repository(onnx_artifact, tmp_path / "models", ServeConfig(**ANY_PORTS))


@pytest.mark.server
def test_no_text_is_in_the_log(repository: Path, tmp_path: Path) -> None:
    config = ServeConfig(**ANY_PORTS, log_file=tmp_path / "server.log")
    with TritonServer(repository, config) as server:
        statuses = list(text_statuses(server))
    log = (tmp_path / "server.log").read_text(errors="replace")
    assert statuses.count(200) >= 6 and len([each for each in statuses if each >= 400]) >= 12
    assert "Started HTTPService" in log
    assert SECRET not in log and SECRET[:6] not in log


@pytest.mark.server
@pytest.mark.slow
def test_the_log_of_a_crash_is_there_after_it(repository: Path) -> None:
    with TritonServer(repository, ServeConfig(**ANY_PORTS)) as server:
        assert server.supervisor is not None
        psutil.Process(server.supervisor.pid).children()[0].kill()
        with pytest.raises(ServingError, match=r"The log is in (\S+\.log)\.$") as crash:
            server.wait()
    log = Path(str(crash.value).rpartition(" ")[2].rstrip("."))
    assert "Started HTTPService" in log.read_text()
    log.unlink()


STARTED = """
import sys
from pathlib import Path
from serve.config import ServeConfig
from serve.server import TritonServer

config = ServeConfig(http_port=0, grpc_port=0, metrics_port=0, log_file=Path("-"))
with TritonServer(Path(sys.argv[1]), config):
    pass
"""


@pytest.mark.server
@pytest.mark.slow
def test_the_log_goes_to_standard_output(repository: Path) -> None:
    command = [sys.executable, "-c", STARTED, str(repository)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "Started HTTPService" in done.stdout


def test_a_greatest_size_is_of_a_file() -> None:
    with pytest.raises(ConfigError, match=r"log_file=- and log_max_mb=5\.0: only a file"):
        ServeConfig.parse({"log_file": "-", "log_max_mb": 5})


@pytest.mark.server
@pytest.mark.parametrize("name", [".", "file/server.log"], ids=["a folder", "below a file"])
def test_a_log_that_cannot_be_written_is_named_before_the_start(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = tmp_path / name
    server = TritonServer(tmp_path, ServeConfig(**ANY_PORTS, log_file=log))
    with pytest.raises(ConfigError, match=f"log_file={log}: .+ --log-file"), server:
        pass
    assert server.supervisor is None


def test_a_log_that_cannot_be_saved_does_not_hide_the_reason(tmp_path: Path) -> None:
    server = TritonServer(tmp_path, ServeConfig(**ANY_PORTS), tmp_path / "none")
    server.supervisor = subprocess.Popen(["false"])
    with pytest.raises(ServingError, match=r"status 1: its log has no reason.+not be saved"):
        server.wait()
