"""The door's HTTP, by the clients that are published."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.http
import tritonclient.http.aio
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

from bertender.core.errors import DataError, ServingError
from serve.client.access import AccessConfig
from serve.client.endpoint import Endpoint
from tests.serve.certificates import make_certificate
from tests.serve.door.fake_engine import BREAK, BUSY, RunningDoor, model_of, running_door
from tests.serve.door.raw_http import body, exchange, get, post, read_answer
from tests.serve.routes import HTTP_ROUTES
from tests.served import until

TEXTS = ["good pear", "bad pear", "plum"]
TOKEN = "the token of the administrator"
EXPECTED = ["positive", "negative", "unknown"]


@pytest.fixture(scope="module")
def door() -> Iterator[RunningDoor]:
    with running_door(admin_token=TOKEN) as door:
        yield door


def text_input(texts: list[str], binary: bool) -> Any:
    tensor = tritonclient.http.InferInput("TEXT", [len(texts), 1], "BYTES")
    array = np.array([[text.encode()] for text in texts], np.object_)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def labels(result: Any) -> list[str]:
    return [
        value.decode() if isinstance(value, bytes) else value
        for value in result.as_numpy("LABEL").reshape(-1)
    ]


@pytest.mark.parametrize("binary_out", [True, False, None])
@pytest.mark.parametrize("binary_in", [True, False])
def test_tritonclient_over_http(
    door: RunningDoor, binary_in: bool, binary_out: bool | None
) -> None:
    outputs = None
    if binary_out is not None:
        outputs = [
            tritonclient.http.InferRequestedOutput(name, binary_data=binary_out)
            for name in ("SCORE", "LABEL")
        ]
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{door.http_port}")
    result = client.infer(
        "classifier", [text_input(TEXTS, binary_in)], outputs=outputs, request_id="an id"
    )
    assert labels(result) == EXPECTED
    assert result.as_numpy("SCORE").tolist() == [[9], [8], [4]]
    assert (result.as_numpy("LOGITS") is None) is (outputs is not None)
    response = result.get_response()
    assert response["id"] == "an id" and response["model_name"] == "classifier"
    client.close()


def test_a_response_names_the_version_that_answered() -> None:
    """Also where the body came slowly, and a deployment has replaced the model meanwhile."""
    content = post(body())
    with running_door() as door, socket.create_connection(("127.0.0.1", door.http_port)) as slow:
        slow.sendall(content[:-5])
        until(lambda: door.door.held_bytes > 0)
        door.engine.served = {"classifier": model_of(version="2")}
        slow.sendall(content[-5:])
        answer = read_answer(slow)
    assert answer is not None and json.loads(answer.body)["model_version"] == "2"


def test_tritonclient_over_asyncio(door: RunningDoor) -> None:
    async def ask() -> list[str]:
        url = f"127.0.0.1:{door.http_port}"
        async with tritonclient.http.aio.InferenceServerClient(url) as client:
            assert await client.is_model_ready("classifier")
            results = await asyncio.gather(
                *(client.infer("classifier", [text_input([text], True)]) for text in TEXTS)
            )
        return [label for result in results for label in labels(result)]

    assert asyncio.run(ask()) == EXPECTED


def test_what_is_served(door: RunningDoor) -> None:
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{door.http_port}")
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready("classifier") and client.is_model_ready("classifier", "1")
    assert not client.is_model_ready("classifier", "2") and not client.is_model_ready("other")
    assert client.get_server_metadata()["name"] == "bertender"
    metadata = client.get_model_metadata("classifier")
    assert metadata["versions"] == ["1"] and metadata["platform"] == "python"
    assert metadata["inputs"] == [{"name": "TEXT", "datatype": "BYTES", "shape": [-1, 1]}]
    assert {each["name"] for each in metadata["outputs"]} == {"LABEL", "SCORE", "LOGITS"}
    assert client.get_model_config("classifier")["max_batch_size"] == 64
    client.close()


@pytest.mark.parametrize("wrong", ["leaving", "away"])
def test_readiness_follows_what_is_true(door: RunningDoor, wrong: str) -> None:
    changed: Any = door.engine if wrong == "away" else door.door
    before = getattr(changed, wrong)
    setattr(changed, wrong, not before)
    try:
        for path in ("/v2/health/ready", "/v2/models/classifier/ready"):
            answer = get(door.http_port, path)
            assert answer.status == 503
            assert json.loads(answer.body)["ready"] is False
        assert get(door.http_port, "/v2/health/live").status == 200
    finally:
        setattr(changed, wrong, before)
    answer = get(door.http_port, "/v2/health/ready")
    assert answer.status == 200 and json.loads(answer.body) == {"ready": True}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/classifier/versions/9/config", 404),
        ("GET", "/v2/models/classifier/infer", 405),
        ("POST", "/v2/models/classifier/generate", 404),
        ("GET", "/v2/models/..%2f..%2fetc/config", 404),
        ("GET", "/v2/models/%ff%0a/config", 404),
        ("GET", "/v2/health/ready/", 404),
        ("POST", "/v2/models/classifier/infer/", 404),
        ("DELETE", "/v2", 405),
        ("OPTIONS", "/v2", 405),
    ],
)
def test_what_is_not_there(door: RunningDoor, method: str, path: str, status: int) -> None:
    answer = get(door.http_port, path, method=method)
    assert answer.status == status and answer.error


@pytest.mark.parametrize(
    ("text", "status", "retry_after"), [(BUSY, 503, "3"), (BREAK, 500, None), (" ", 400, None)]
)
def test_a_refusal(door: RunningDoor, text: str, status: int, retry_after: str | None) -> None:
    answer = exchange(door.http_port, post(body(data=[text])))
    assert answer is not None and answer.status == status
    assert answer.headers.get("retry-after") == retry_after
    assert answer.error and "a bad day" not in answer.error, "what failed is for the log"


ADMIN = "bertender-admin-token"
CLOSED = [(path, method) for routes in HTTP_ROUTES.values() for method, path, _ in routes]


@pytest.mark.parametrize(("path", "method"), CLOSED)
def test_administrative_routes_need_the_token(door: RunningDoor, path: str, method: str) -> None:
    for headers in ([], [f"{ADMIN}: wrong"], [f"{ADMIN}:"]):
        answer = get(door.http_port, path, *headers, method=method)
        assert answer.status == 403 and "restricted" in answer.error
    right = get(door.http_port, path, f"{ADMIN}: {TOKEN}", method=method)
    assert right.status == (200 if path == "/v2/repository/index" else 501)


def test_who_has_the_token_loads_models(door: RunningDoor) -> None:
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{door.http_port}")
    headers = {ADMIN: TOKEN}
    index = client.get_model_repository_index(headers=headers)
    assert index == [{"name": "classifier", "version": "1", "state": "READY"}]
    client.load_model("classifier", headers=headers)
    assert door.engine.loaded == ["classifier"]
    client.unload_model("classifier", headers=headers)
    assert door.engine.loaded == []
    with pytest.raises(InferenceServerException, match="failed to load 'other'"):
        client.load_model("other", headers=headers)
    with pytest.raises(InferenceServerException, match="without parameters"):
        client.load_model("classifier", headers=headers, config="{}")
    client.close()


def test_without_a_token_nobody_administers() -> None:
    with running_door() as door:
        for headers in ([], [f"{ADMIN}:"], [f"{ADMIN}: None"]):
            assert get(door.http_port, "/v2/logging", *headers).status == 403


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("LOCALHOST.", 200),
        ("an-alias:8000", 200),  # of /etc/hosts
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("10.0.0.1", 200),  # an address is no name, which could be given another
        (socket.gethostname(), 200),
        ("evil.example:8000", 403),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
    ],
)
def test_a_local_server_is_asked_by_the_names_of_this_machine(host: str, status: int) -> None:
    asked = f"GET /v2 HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    for expected, settings in ((status, {}), (200, {"behind_proxy": True})):
        with running_door(is_local=True, **settings) as door:
            answer = exchange(door.http_port, asked)
            assert answer is not None and answer.status == expected


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize(
    ("forwarded", "named"),
    [
        (["9.9.9.9"], "9.9.9.9"),
        (["6.6.6.6, 9.9.9.9"], "9.9.9.9"),  # the client has written the first
        (["6.6.6.6", "9.9.9.9"], "9.9.9.9"),
        (["9.9.9.9, forged"], "127.0.0.1"),
        ([], "127.0.0.1"),
    ],
)
def test_a_proxy_names_the_caller_by_its_last_address(
    forwarded: list[str], named: str, protocol: str
) -> None:
    with running_door(behind_proxy=True) as door:
        if protocol == "http":
            headers = [f"X-Forwarded-For: {each}" for each in forwarded]
            exchange(door.http_port, post(body(), *headers))
        else:
            request = service_pb2.ModelInferRequest(model_name="classifier")
            request.inputs.add(name="TEXT", datatype="BYTES", shape=(1, 1))
            request.raw_input_contents.append(b"\4\0\0\0plum")
            with grpc.insecure_channel(f"127.0.0.1:{door.grpc_port}") as channel:
                stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                stub.ModelInfer(request, metadata=[("x-forwarded-for", each) for each in forwarded])
        (asked,) = door.engine.requests
        assert asked.caller.removeprefix("ipv4:").partition(":")[0] == named


def test_pages_elsewhere_ask_only_where_they_are_allowed(door: RunningDoor) -> None:
    here, there = "Origin: https://here.example", "Origin: https://there.example"
    assert "access-control-allow-origin" not in get(door.http_port, "/v2", here).headers
    with running_door(allow_origins=("https://here.example",)) as open_door:
        port = open_door.http_port
        allowed = get(port, "/v2", here).headers["access-control-allow-origin"]
        assert allowed == "https://here.example"
        assert "access-control-allow-origin" not in get(port, "/v2", there).headers
        asked = "Access-Control-Request-Method: POST"
        path = "/v2/models/classifier/infer"
        assert get(port, path, here, asked, method="OPTIONS").status == 200
        assert get(port, path, there, asked, method="OPTIONS").status == 400


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_our_own_client(door: RunningDoor, protocol: str) -> None:
    port = door.http_port if protocol == "http" else door.grpc_port
    with Endpoint(f"{protocol}://127.0.0.1:{port}") as endpoint:
        assert [answer.label for answer in endpoint.classify(TEXTS)] == EXPECTED
        with pytest.raises(DataError, match="row 1"):
            endpoint.classify(["pear", " "])
        with pytest.raises(ServingError, match="bytes, allowed") as refused:
            endpoint.classify(["a" * 40_000])
    assert "refused" in str(refused.value)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tls(protocol: str, tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    with running_door(tls_certificate=certificate, tls_key=key) as door:
        port = door.http_port if protocol == "http" else door.grpc_port
        access = AccessConfig(ca_file=certificate)
        with Endpoint(f"{protocol}s://127.0.0.1:{port}", access=access) as endpoint:
            assert [answer.label for answer in endpoint.classify(TEXTS)] == EXPECTED


def test_both_protocols_on_uvloop() -> None:
    with running_door(loop_factory=uvloop.new_event_loop) as door:
        for url in (f"http://127.0.0.1:{door.http_port}", f"grpc://127.0.0.1:{door.grpc_port}"):
            with Endpoint(url) as endpoint:
                assert [answer.label for answer in endpoint.classify(TEXTS)] == EXPECTED
