"""The administrative routes of the real server are closed, and open to who has the token alone."""

from __future__ import annotations

import secrets
import socket
import stat
import struct
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import grpc
import psutil
import pytest

from bertender.core.errors import ConfigError, ServingError
from bertender.models.classifier import Classifier
from serve.client.endpoint import classify
from serve.config import ServeConfig
from serve.server.installation import find_installation
from serve.server.launch import (
    CATEGORIES,
    GRPC_HEADER,
    HTTP_HEADER,
    NO_HEADER,
    admin_token,
    check_closed,
    command,
)
from serve.server.server import TritonServer
from serve.server.workspace import Workspace
from tests.serve.routes import GRPC_ROUTES, HTTP_ROUTES, ask_grpc, ask_http

OPEN_ROUTES = ("/v2/health/live", "/v2/health/ready", "/v2/models/classifier/ready", "/v2")


def token_of(server: TritonServer) -> str:
    assert server.config.admin_token_file is not None
    return server.config.admin_token_file.read_text().strip()


def test_every_closed_category_is_tested_on_both_protocols() -> None:
    assert set(HTTP_ROUTES) == set(GRPC_ROUTES) == set(CATEGORIES)


@pytest.mark.server
@pytest.mark.parametrize("category", HTTP_ROUTES)
def test_http_needs_the_token(category: str, administered: TritonServer) -> None:
    port = administered.config.http_port
    right = {HTTP_HEADER: token_of(administered)}
    for method, path, body in HTTP_ROUTES[category]:
        for headers in (
            {},
            {HTTP_HEADER: ""},
            {HTTP_HEADER: secrets.token_urlsafe(32)},
            {"Authorization": "x"},
        ):
            status, answer = ask_http(port, method, path, body, headers)
            assert status == 403 and b"restricted" in answer, (path, headers)
        assert ask_http(port, method, path, body, right)[0] == 200, path


@pytest.mark.server
@pytest.mark.parametrize("category", GRPC_ROUTES)
def test_grpc_needs_the_token(category: str, administered: TritonServer) -> None:
    port = administered.config.grpc_port
    right = {GRPC_HEADER: token_of(administered)}
    for method, fields in GRPC_ROUTES[category]:
        for metadata in (
            {},
            {GRPC_HEADER: secrets.token_urlsafe(32)},
            {HTTP_HEADER: right[GRPC_HEADER]},
        ):
            assert ask_grpc(port, method, fields, metadata) == grpc.StatusCode.UNAVAILABLE, method
        assert ask_grpc(port, method, fields, right) == grpc.StatusCode.OK, method


@pytest.mark.server
@pytest.mark.parametrize("category", CATEGORIES)
def test_by_default_nobody_has_the_token(category: str, served: TritonServer) -> None:
    for method, path, body in HTTP_ROUTES[category]:
        assert ask_http(served.config.http_port, method, path, body)[0] == 403
    for name, fields in GRPC_ROUTES[category]:
        assert ask_grpc(served.config.grpc_port, name, fields) == grpc.StatusCode.UNAVAILABLE


@pytest.mark.server
def test_inference_and_readiness_need_no_token(
    administered: TritonServer, local: Classifier
) -> None:
    examples = [("apple saw",), ("plum",)]
    expected = [local.labels[best] for best in local.logits(examples).argmax(axis=1)]
    for url in (administered.http_url, administered.grpc_url):
        assert [answer.label for answer in classify(examples, url)] == expected
    for path in OPEN_ROUTES:
        assert ask_http(administered.config.http_port, "GET", path)[0] == 200
    assert ask_grpc(administered.config.grpc_port, "ServerReady", {}) == grpc.StatusCode.OK


@pytest.mark.server
def test_the_token_is_in_no_command_line_and_no_log(administered: TritonServer) -> None:
    assert administered.supervisor is not None
    supervisor = psutil.Process(administered.supervisor.pid)
    family = [supervisor, *supervisor.children(recursive=True)]
    lines = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in family]
    assert len(lines) == 3 and "@BERTENDER_ADMIN_TOKEN" in lines[0]
    assert f"{HTTP_HEADER}=****" in lines[1], "overwritten once Triton has read it"
    secret = token_of(administered)
    assert not [line for line in lines if secret in line]
    assert secret not in administered.log_file.read_text()


def test_a_missing_token_file_is_written_for_this_user_alone(tmp_path: Path) -> None:
    file = tmp_path / "token"
    token = admin_token(file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and file.read_text() == f"{token}\n"
    assert admin_token(file) == token, "the next start has the same"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660])
def test_a_token_that_others_can_read_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    admin_token(file)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=rf"mode {mode:o}.*chmod 600 .*token"):
        admin_token(file)


@pytest.mark.parametrize("text", ["", "short", "two words of sixteen", "a" * 257, "x=1,y:2" * 9])
def test_what_is_no_token_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match=r"no token in it.*16 to 256 letters.*Remove the file"):
        admin_token(file)


def test_a_token_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"admin_token_file=.*none/token.*No such file"):
        admin_token(tmp_path / "none" / "token")


@pytest.mark.parametrize(
    ("file", "who"),
    [("token", "bertender-admin-token=@BERTENDER_ADMIN_TOKEN"), (None, "closed to\neverybody=-")],
)
def test_both_protocols_are_closed_by_the_same_rule(file: str | None, who: str) -> None:
    config = ServeConfig(admin_token_file=file)
    words = command(find_installation(), Workspace(), ["classifier"], config)
    categories = "shared-memory,model-repository,statistics,trace,logging"
    for option in ("http-restricted-api", "grpc-restricted-protocol"):
        assert f"--{option}={categories}:{who}" in words


@pytest.mark.server
@pytest.mark.parametrize("name", ["closed to", "everybody", "closed to\r\n everybody"])
def test_no_header_meets_the_rule_by_default(name: str, served: TritonServer) -> None:
    request = f"POST /v2/repository/index HTTP/1.1\r\nContent-Length: 0\r\n{name}: -\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.config.http_port), 5) as connection:
        connection.sendall(request.encode())
        answer = connection.recv(99)
    assert not answer or answer.startswith(b"HTTP/1.1 403"), answer


def raw_grpc(port: int, method: str, *metadata: tuple[str, str]) -> bytes:
    """What a server answers to an empty request with any metadata: grpcio would refuse some."""

    def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
        head = struct.pack(">IBBI", len(payload), kind, flags, stream)[1:]
        return head + payload

    headers = [
        *((":method", "POST"), (":scheme", "http"), (":authority", "localhost")),
        (":path", f"/inference.GRPCInferenceService/{method}"),
        *(("te", "trailers"), ("content-type", "application/grpc"), *metadata),
    ]
    literals = (b"".join(bytes([len(x)]) + x.encode() for x in header) for header in headers)
    block = b"".join(b"\0" + literal for literal in literals)
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        connection.sendall(frame(1, 4, 1, block) + frame(0, 1, 1, bytes(5)))
        answer = b""
        while b"grpc-status" not in answer and (more := connection.recv(2**16)):
            answer += more
        return answer


@pytest.mark.server
def test_no_metadata_meets_the_rule_by_default(served: TritonServer) -> None:
    port = served.config.grpc_port
    assert port is not None
    key = f"triton-grpc-protocol-{NO_HEADER}"
    assert b"grpc-status\x010" in raw_grpc(port, "ServerReady")
    assert b"restricted" in raw_grpc(port, "RepositoryIndex")
    for name in (key, key.replace("\n", " "), key.replace("\n", "")):
        answer = raw_grpc(port, "RepositoryIndex", (name, "-"))
        assert b"grpc-status" in answer and b"grpc-status\x010" not in answer, name


class Open(BaseHTTPRequestHandler):
    """A server that knows of no closed routes."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def test_a_server_with_open_routes_is_refused() -> None:
    with HTTPServer(("127.0.0.1", 0), Open) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(ServingError, match=r"/v2/repository/index .* status 200, expected 403"):
            check_closed("127.0.0.1", server.server_port)
        server.shutdown()
