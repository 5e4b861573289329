"""A dead Python stub ends the real server, or has it started again: Triton does neither."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import DeadlineError, ServingError
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.server.server import Server, serving
from serve.server.supervisor import STUB_DIED
from serve.server.triton_process import STOP_TIMEOUT_S
from tests.serve.processes import assert_gone, family_of, stub_of
from tests.served import ANY_PORTS

pytestmark = pytest.mark.server


@contextmanager
def running(artifact: Artifact, folder: Path, **settings: object) -> Iterator[Server]:
    config = ServeConfig.parse({**ANY_PORTS, "threads_per_instance": 1, **settings})
    with Server(write_repository(artifact, folder / "models", config), config) as server:
        yield server


def test_a_dead_stub_ends_the_server(onnx_artifact: Artifact, tmp_path: Path) -> None:
    with (
        running(onnx_artifact, tmp_path, restart=False) as server,
        Endpoint(server.http_url, retries=0) as endpoint,
    ):
        family = family_of(server)
        stub_of(server).kill()
        killed = time.monotonic()
        with pytest.raises(ServingError) as raised:
            endpoint.classify([("apple",)])
        assert not isinstance(raised.value, DeadlineError), "nobody is left waiting"
        with pytest.raises(ServingError, match=f"status {STUB_DIED}: the Python stub, process"):
            server.wait()
        assert time.monotonic() - killed < STOP_TIMEOUT_S, "nothing is waited for"
        assert_gone(family)


def without_links(source: Path, target: Path) -> None:
    raise OSError("another file system")


@pytest.mark.fault("the Python process dies", "requests get 503 until it has started again")
def test_a_dead_stub_is_replaced(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the model that it had, though another version has replaced the artifact meanwhile."""
    shutil.copytree(onnx_artifact.path, tmp_path / "artifact")
    artifact = Artifact.load(tmp_path / "artifact")
    monkeypatch.setattr(os, "link", without_links)
    config = ServeConfig(**ANY_PORTS, threads_per_instance=1, restart=True)
    with serving(artifact, config) as server:
        with Endpoint(server.http_url) as endpoint:
            before = endpoint.logits([("apple",)])
        (artifact.path / "model.onnx").write_bytes(b"another version")
        stub_of(server).kill()
        deadline = time.monotonic() + 20
        while True:
            try:
                with Endpoint(server.http_url, timeout_s=2) as endpoint:
                    after = endpoint.logits([("apple",)])
                break
            except ServingError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        assert after.tolist() == before.tolist()
        assert "it starts again" in server.log_file.read_text()
