"""The configuration of deploy/nginx, run by a real nginx in front of the real server."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from bertender.models.classifier import Classifier
from serve.client.access import AccessConfig
from serve.client.endpoint import Endpoint
from serve.config import ServeConfig
from serve.server.launch import HTTP_HEADER
from serve.server.server import Server
from tests.serve.proxies import KEY, Proxy, proxy_before
from tests.serve.routes import HTTP_ROUTES

pytestmark = pytest.mark.server

INFER, READY = "/v2/models/classifier/infer", "/v2/models/classifier/ready"
ABSENT = ("/metrics", "/", "/v2", "/v2/models/other/infer", "/v2/models/classifier/../../logging")
AUTHORIZED = {"Authorization": KEY}
WRONG_KEYS: tuple[Mapping[str, str], ...] = (
    {},
    {"Authorization": ""},
    {"Authorization": KEY.removeprefix("Bearer ")},
    {"Authorization": f"{KEY}0"},
    {"Authorization": "Bearer "},
    {"X-Api-Key": KEY},
)


def request_of(texts: Sequence[str]) -> bytes:
    tensor = {"name": "TEXT", "datatype": "BYTES", "shape": [len(texts), 1], "data": list(texts)}
    return json.dumps({"inputs": [tensor]}).encode()


def labels_of(answer: bytes) -> list[str]:
    outputs = {output["name"]: output["data"] for output in json.loads(answer)["outputs"]}
    return list(outputs["LABEL"])


def wait_for_line(proxy: Proxy, words: str) -> None:
    """Wait until the log has a line: nginx writes it after the answer."""
    deadline = time.monotonic() + 10
    while words not in (log := (proxy.folder / "log").read_text()):
        assert time.monotonic() < deadline, log
        time.sleep(0.02)


def test_who_has_a_key_gets_predictions(proxy: Proxy, local: Classifier) -> None:
    texts = ["apple saw", "plum", "🍐 drill"]
    logits = local.logits([(text,) for text in texts])
    expected = [local.labels[best] for best in logits.argmax(axis=1)]
    status, answer = proxy.ask("POST", INFER, request_of(texts), AUTHORIZED)
    assert (status, labels_of(answer)) == (200, expected)


@pytest.mark.parametrize("headers", WRONG_KEYS, ids=str)
def test_who_has_no_key_gets_nothing(headers: Mapping[str, str], proxy: Proxy) -> None:
    assert proxy.ask("POST", INFER, request_of(["plum"]), headers)[0] == 401


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_health_needs_no_key(path: str, proxy: Proxy) -> None:
    assert proxy.ask("GET", path)[0] == 200


@pytest.mark.parametrize("category", HTTP_ROUTES)
def test_administrative_routes_are_not_there(
    category: str, proxy: Proxy, administered: Server
) -> None:
    """Not even for who has the token as well as a key."""
    assert administered.config.admin_token_file is not None
    token = administered.config.admin_token_file.read_text().strip()
    for method, path, body in HTTP_ROUTES[category]:
        assert proxy.ask(method, path, body, {**AUTHORIZED, HTTP_HEADER: token})[0] == 404


@pytest.mark.parametrize("path", ABSENT)
def test_nothing_else_is_there(path: str, proxy: Proxy) -> None:
    assert proxy.ask("GET", path, headers=AUTHORIZED)[0] == 404


def test_the_longest_text_fits_with_its_escapes(proxy: Proxy) -> None:
    text = "\u044b" * (ServeConfig().max_text_bytes // 2)
    body = request_of([text])
    assert body.count(rb"\u044b") == len(text)
    status, content = proxy.ask("POST", INFER, body, AUTHORIZED)
    assert (status, b"error" in content) in {(200, False), (400, True)}, content[:200]


def test_as_many_of_the_longest_texts_as_are_sent_together_fit(
    proxy: Proxy, key_file: Path
) -> None:
    access = AccessConfig(ca_file=proxy.certificate, api_key_file=key_file)
    text = "plum " * (ServeConfig().max_text_bytes // 5)
    with Endpoint(proxy.url, access=access) as endpoint:
        assert len(endpoint.classify([(text,)] * endpoint.batch_size)) == 64


def test_nothing_speaks_grpc(proxy: Proxy) -> None:
    credentials = grpc.ssl_channel_credentials(proxy.certificate.read_bytes())
    with grpc.secure_channel(f"localhost:{proxy.port}", credentials) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        with pytest.raises(grpc.RpcError):
            stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=5)


def test_a_client_that_asks_too_often_is_told_so_and_no_other(
    administered: Server, tmp_path: Path
) -> None:
    with proxy_before(administered.config.http_port, tmp_path, rate=(1, 3)) as proxy:
        statuses = [proxy.ask("GET", READY, headers=AUTHORIZED)[0] for _ in range(8)]
        assert statuses[:4] == [200] * 4 and 429 in statuses
        assert proxy.ask("GET", "/v2/health/ready")[0] == 200
        assert proxy.ask("GET", READY)[0] == 401, "a wrong key takes nothing from anybody"


def test_a_body_over_the_limit_is_refused(proxy: Proxy) -> None:
    assert proxy.ask("POST", INFER, b" " * (2**20 + 1), AUTHORIZED)[0] == 413
    assert proxy.ask("POST", INFER, request_of(["plum"]), AUTHORIZED)[0] == 200


def test_a_compressed_body_is_refused(proxy: Proxy) -> None:
    bomb = gzip.compress(request_of(["plum " * 2**20]))
    headers = {**AUTHORIZED, "Content-Encoding": "gzip"}
    assert proxy.ask("POST", INFER, bomb, headers)[0] == 415


def test_without_tls_there_is_nothing(proxy: Proxy) -> None:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as plain:
        plain.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b" 400 " in plain.recv(4096).splitlines()[0]


def test_old_tls_is_refused(proxy: Proxy) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(proxy.certificate)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with (
        socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as plain,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        context.wrap_socket(plain, server_hostname="localhost")


def test_slow_clients_hold_nobody_up(proxy: Proxy) -> None:
    """They have the proxy's connections, and none of the server's threads."""
    head = (
        f"POST {INFER} HTTP/1.1\r\nHost: x\r\nAuthorization: {KEY}\r\nContent-Length: 999\r\n\r\n"
    )
    slow = []
    for _ in range(50):
        connection = proxy.connect()
        connection.connect()
        connection.sock.sendall(head.encode() + b"{")
        slow.append(connection)
    try:
        started = time.monotonic()
        for _ in range(5):
            assert proxy.ask("POST", INFER, request_of(["plum"]), AUTHORIZED)[0] == 200
        assert time.monotonic() - started < 5
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.slow
def test_who_sends_no_request_is_let_go(proxy: Proxy) -> None:
    connection = proxy.connect()
    connection.connect()
    connection.sock.sendall(b"POST / HTTP/1.1\r\nHost:")
    started = time.monotonic()
    connection.sock.settimeout(20)
    connection.sock.recv(1)
    assert 3 < time.monotonic() - started < 15
    connection.close()


def test_the_log_names_the_client_and_no_text(proxy: Proxy) -> None:
    proxy.ask("POST", f"{INFER}?MARKED=1", request_of(["MARKED"]), AUTHORIZED)
    proxy.ask("POST", INFER, b"MARKED" * 2**21, AUTHORIZED)
    wait_for_line(proxy, f'"shop" "POST {INFER}" 200')
    wait_for_line(proxy, f'"shop" "POST {INFER}" 413')
    log = (proxy.folder / "log").read_text()
    assert "MARKED" not in log.replace("?MARKED=1", "") and KEY not in log


class Recording(BaseHTTPRequestHandler):
    """A server that tells what reaches it."""

    seen: tuple[dict[str, str], bytes]

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        Recording.seen = (headers, body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_chunks_and_secrets_do_not_reach_the_server(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), Recording) as upstream:
        Thread(target=upstream.serve_forever, daemon=True).start()
        with proxy_before(upstream.server_port, tmp_path) as proxy:
            chunks = (b"part " for _ in range(1000))
            assert proxy.ask("POST", INFER, chunks, {**AUTHORIZED, HTTP_HEADER: "x"})[0] == 200
        upstream.shutdown()
    headers, body = Recording.seen
    assert body == b"part " * 1000 and headers["content-length"] == "5000"
    assert not {"transfer-encoding", "authorization", HTTP_HEADER} & headers.keys()
