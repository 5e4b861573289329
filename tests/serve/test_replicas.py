"""Two real servers behind the haproxy of deploy/: restarted in turns, without a failed request."""

from __future__ import annotations

import http.client
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from tritonclient.grpc import InferenceServerClient
from tritonclient.utils import InferenceServerException

from bertender.core.artifact import Artifact
from serve.client.endpoint import Endpoint
from tests.serve.haproxy import Proxy, Replica, proxied, running_replicas

pytestmark = [pytest.mark.server, pytest.mark.slow]

CLIENTS = 4
TEXTS = [("apple saw",), ("plum",)]
ABSENT = (
    ("GET", "/v2"),
    ("GET", "/v2/logging"),
    ("GET", "/metrics"),
    ("POST", "/v2/repository/index"),
    ("POST", "/v2/repository/models/classifier/unload"),
    ("POST", "/v2/models/classifier/trace/setting"),
    ("POST", "/v2/systemsharedmemory/region/own/register"),
    ("POST", "/v2/models/other/infer"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replicas")


@pytest.fixture(scope="module")
def replicas(onnx_artifact: Artifact, folder: Path) -> Iterator[list[Replica]]:
    if shutil.which("haproxy") is None:
        pytest.skip("no haproxy here: install it")
    with running_replicas(onnx_artifact.path, folder) as running:
        yield running


@pytest.fixture(scope="module")
def proxy(replicas: list[Replica], folder: Path) -> Iterator[Proxy]:
    with proxied(replicas, folder) as running:
        yield running


def drained(proxy: Proxy, replicas: list[Replica], place: int) -> None:
    """Restart a replica as the documents say."""
    proxy.drain(place)
    replicas[place].stop()
    replicas[place].start()
    proxy.use(place)


def unannounced(proxy: Proxy, replicas: list[Replica], place: int) -> None:
    """Restart a replica of whose end nobody tells the proxy."""
    replicas[place].stop()
    replicas[place].start()


RESTARTS: Mapping[str, tuple[str, Callable[[Proxy, list[Replica], int], None]]] = {
    "HTTP, drained": ("http_url", drained),
    "gRPC, drained": ("grpc_url", drained),
    "HTTP, unannounced": ("http_url", unannounced),
}


@pytest.mark.parametrize("name", RESTARTS)
def test_a_rolling_restart_fails_no_request(
    name: str, proxy: Proxy, replicas: list[Replica]
) -> None:
    """The other replica carries all meanwhile: it needs no client that sends again."""
    url, restart = RESTARTS[name]
    stop = Event()

    def ask() -> list[float]:
        ends = []
        with Endpoint(getattr(proxy, url), retries=0, timeout_s=30) as endpoint:
            while not stop.is_set():
                assert len(endpoint.classify(TEXTS)) == len(TEXTS)
                ends.append(time.monotonic())
        return ends

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask) for _ in range(CLIENTS)]
        try:
            away = [restarted(restart, proxy, replicas, place) for place in (0, 1)]
        finally:
            stop.set()
        ends = [end for client in clients for end in client.result()]
    for began, ended in away:
        assert any(began < end < ended for end in ends), "nobody asked meanwhile"


def restarted(
    restart: Callable[[Proxy, list[Replica], int], None],
    proxy: Proxy,
    replicas: list[Replica],
    place: int,
) -> tuple[float, float]:
    """Restart a replica, and wait until the proxy uses it; return when that began and ended."""
    began = time.monotonic()
    restart(proxy, replicas, place)
    ended = time.monotonic()
    deadline = ended + 20
    while not proxy.uses(place):
        assert time.monotonic() < deadline, "the replica is ready and gets no requests"
        time.sleep(0.05)
    return began, ended


def test_both_replicas_get_requests_again(proxy: Proxy, replicas: list[Replica]) -> None:
    """The order of tests does not matter: they are back after each."""
    assert [proxy.uses(place) for place in (0, 1)] == [True, True]
    proxy.drain(0)
    assert [proxy.uses(place) for place in (0, 1)] == [False, True]
    proxy.use(0)
    assert proxy.uses(0)


@pytest.mark.parametrize(("method", "path"), ABSENT)
def test_nothing_but_the_model_is_there(method: str, path: str, proxy: Proxy) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", proxy.http_port, timeout=20)
    connection.request(method, path, body=b"{}" if method == "POST" else None)
    response = connection.getresponse()
    assert response.status == 404
    assert response.read() == b"no such route"  # the proxy's own words, not a replica's
    connection.close()


def test_grpc_has_nothing_but_the_model_either(proxy: Proxy) -> None:
    with InferenceServerClient(f"127.0.0.1:{proxy.grpc_port}") as client:
        assert client.is_model_ready("classifier")
        with pytest.raises(InferenceServerException) as caught:
            client.get_model_repository_index()
    assert caught.value.status() == "StatusCode.UNIMPLEMENTED"  # what gRPC makes of a 404
