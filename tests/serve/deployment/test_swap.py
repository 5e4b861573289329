"""Versions that take each other's place under load: no request is dropped."""

from __future__ import annotations

import http.client
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

import numpy as np
import pytest

from bertender.gate.judge import TOLERANCES
from serve.config import SERVERS, DeployConfig
from serve.deploy import deploy
from serve.repository.config_pbtxt import read_model_config
from serve.server.server import Server
from serve.server.targets import ModelFolder
from tests.runtimes import needs
from tests.serve.deployment.conftest import (
    ASKED,
    Versions,
    answered_by,
    asking,
    deployable,
    logits_of,
)
from tests.served import PORTS, ask_one_by_one

pytestmark = pytest.mark.server


@contextmanager
def watching_readiness(url: str, pause_s: float) -> Iterator[list[int]]:
    """Ask whether the server is ready, again and again; list the statuses."""
    statuses: list[int] = []
    stop = Event()

    def watch() -> None:
        while not stop.wait(pause_s):
            connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)
            connection.request("GET", "/v2/health/ready")
            statuses.append(connection.getresponse().status)
            connection.close()

    thread = Thread(target=watch)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    ("has_grpc", "pause_s"),
    [
        (False, 0.05),
        # as many requests as two cores can send
        pytest.param(False, 0.0, marks=pytest.mark.slow),
        pytest.param(True, 0.0, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("server", SERVERS)
def test_no_request_is_dropped_while_versions_are_swapped(
    server: str, has_grpc: bool, pause_s: float, versions: Versions, tmp_path: Path
) -> None:
    assert np.abs(logits_of(versions.old) - logits_of(versions.new)).max() > 0.1
    settings = {"server": server, **({"grpc_port": 0} if has_grpc else {})}
    with deployable(versions.old, tmp_path, **settings) as running:
        url = running.server.http_url
        urls = [url, running.server.grpc_url if has_grpc else url]
        with (
            asking(*urls, *urls, pause_s=pause_s) as clients,
            watching_readiness(urls[0], pause_s or 0.01) as statuses,
        ):
            for number, artifact in enumerate((versions.new, versions.old), start=2):
                before = len(clients.answers)
                done = deploy(artifact, urls[number % 2], running.config)
                after = len(clients.answers)
                assert (done.version, done.state, done.golden.failures) == (number, "serving", ())
                assert done.digest == artifact.digest
                assert after > before, "nobody asked meanwhile"
                time.sleep(0.3)
                # a request of before may have its answer noted only now
                late = clients.answers[after + len(clients.threads) :]
                assert late and answered_by(late, artifact) == [True]
                assert running.loaded() == {"classifier": {number}}
        assert answered_by(clients.answers, versions.old, versions.new) == [True, True]
        assert set(statuses) == {200}, "a load balancer would have taken it out"
        names = sorted(path.name for path in (running.server.repository / "classifier").iterdir())
        assert names == ["2", "3", "config.pbtxt"], "one earlier version stays"


@pytest.mark.slow
@needs("openvino-bf16")
def test_floats_of_fewer_bits_are_no_reason_to_refuse_a_version(
    versions: Versions, tmp_path: Path
) -> None:
    with deployable(versions.old, tmp_path, runtime="openvino-bf16") as running:
        done = deploy(versions.new, running.server.http_url, running.config)
    assert done.state == "serving"
    assert TOLERANCES["float32"].max_abs * 10 < done.golden.max_abs_difference


@pytest.mark.slow
def test_a_server_that_starts_again_has_the_new_version(versions: Versions, tmp_path: Path) -> None:
    with deployable(versions.old, tmp_path) as running:
        deploy(versions.new, running.server.http_url, running.config)
    with Server(running.server.repository, PORTS) as server:
        _, logits = ask_one_by_one(server.http_url, [ASKED])
    np.testing.assert_allclose(logits[0], logits_of(versions.new), atol=1e-4)


@pytest.mark.slow
def test_the_settings_of_the_served_model_stay(versions: Versions, tmp_path: Path) -> None:
    with deployable(versions.old, tmp_path, max_batch_size=5, max_queue_texts=17) as running:
        deploy(versions.new, running.server.http_url, running.config)
        config = read_model_config(running.server.repository / "classifier" / "config.pbtxt")
    assert config.max_batch_size == 5
    assert config.parameters["max_queue_texts"].string_value == "17"
    assert config.parameters["digest"].string_value == versions.new.digest


@pytest.mark.slow
def test_a_server_of_ones_own_loads_what_a_directory_got(
    versions: Versions, tmp_path: Path
) -> None:
    """The server stands for any that is told to load: `deploy` only knows its directory."""
    with deployable(versions.old, tmp_path) as running:
        repository = running.server.repository
        with asking(running.server.http_url) as clients:
            done = deploy(versions.new, str(repository), DeployConfig())
            assert (done.version, done.state) == (2, "written")
            assert running.loaded() == {"classifier": {1}}, "nobody has told it yet"
            assert answered_by(clients.answers, versions.old, versions.new) == [True, False]
            control = running.control
            control.load("classifier")
            control.wait_for("classifier", 2)
            after = len(clients.answers) + len(clients.threads)
            time.sleep(0.3)
        assert answered_by(clients.answers[after:], versions.new) == [True]
        assert ModelFolder(repository / "classifier").served == 2
