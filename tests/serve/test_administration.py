"""The administrative routes of the real server are closed, and open to who has the token alone."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest

from bertender.core.errors import ConfigError
from bertender.models.classifier import Classifier
from serve.client.endpoint import classify
from serve.config import ServeConfig
from serve.door.process import Process
from serve.server.server import Server
from serve.server.triton_process import CATEGORIES, admin_token
from serve.wire import ADMIN_HEADER, GRPC_ADMIN_HEADER
from tests.serve.door.fake_engine import FakeEngine
from tests.serve.processes import family_of
from tests.serve.routes import GRPC_ROUTES, HTTP_ROUTES, ask_grpc, ask_http

OPEN_ROUTES = ("/v2/health/live", "/v2/health/ready", "/v2/models/classifier/ready", "/v2")
SERVED = "model-repository"
"""The category that the door hands on; it has no others."""


def token_of(server: Server) -> str:
    assert server.config.admin_token_file is not None
    return server.config.admin_token_file.read_text().strip()


def test_every_category_is_tested_on_both_protocols() -> None:
    assert set(HTTP_ROUTES) == set(GRPC_ROUTES) < set(CATEGORIES)


@pytest.mark.parametrize(
    ("settings", "is_said"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "127.0.0.1"}, False),
        ({"host": "0.0.0.0", "behind_proxy": True}, False),
        ({"host": "0.0.0.0", "tls_certificate": "TLS", "tls_key": "TLS"}, False),
    ],
)
def test_a_token_that_crosses_a_network_as_plain_text_is_warned_of(
    settings: dict[str, Any],
    is_said: bool,
    tls: tuple[Path, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    files = dict(zip(("tls_certificate", "tls_key"), tls, strict=True))
    settings |= {name: file for name, file in files.items() if name in settings}
    config = ServeConfig.parse({**settings, "admin_token_file": tmp_path / "token"})
    Process(FakeEngine(), config, tmp_path)
    assert ("the token crosses the network as plain text" in caplog.text) == is_said


@pytest.mark.server
@pytest.mark.parametrize("category", HTTP_ROUTES)
def test_http_needs_the_token(category: str, administered: Server) -> None:
    port = administered.config.http_port
    right = {ADMIN_HEADER: token_of(administered)}
    for method, path, body in HTTP_ROUTES[category]:
        for headers in (
            {},
            {ADMIN_HEADER: ""},
            {ADMIN_HEADER: secrets.token_urlsafe(32)},
            {"Authorization": "x"},
        ):
            status, answer = ask_http(port, method, path, body, headers)
            assert status == 403 and b"restricted" in answer, (path, headers)
        status, _ = ask_http(port, method, path, body, right)
        assert status == (200 if category == SERVED else 501), path


@pytest.mark.server
@pytest.mark.parametrize("category", GRPC_ROUTES)
def test_grpc_needs_the_token(category: str, administered: Server) -> None:
    port = administered.config.grpc_port
    right = {GRPC_ADMIN_HEADER: token_of(administered)}
    allowed = grpc.StatusCode.OK if category == SERVED else grpc.StatusCode.UNIMPLEMENTED
    for method, fields in GRPC_ROUTES[category]:
        for metadata in ({}, {GRPC_ADMIN_HEADER: secrets.token_urlsafe(32)}):
            refused = ask_grpc(port, method, fields, metadata)
            assert refused == grpc.StatusCode.PERMISSION_DENIED, method
        assert ask_grpc(port, method, fields, right) == allowed, method


@pytest.mark.server
@pytest.mark.parametrize("category", HTTP_ROUTES)
def test_by_default_nobody_has_the_token(category: str, served: Server) -> None:
    for method, path, body in HTTP_ROUTES[category]:
        assert ask_http(served.config.http_port, method, path, body)[0] == 403
    for name, fields in GRPC_ROUTES[category]:
        status = ask_grpc(served.config.grpc_port, name, fields)
        assert status == grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.server
def test_inference_and_readiness_need_no_token(administered: Server, local: Classifier) -> None:
    examples = [("apple saw",), ("plum",)]
    expected = [local.labels[best] for best in local.logits(examples).argmax(axis=1)]
    for url in (administered.http_url, administered.grpc_url):
        assert [answer.label for answer in classify(examples, url)] == expected
    for path in OPEN_ROUTES:
        assert ask_http(administered.config.http_port, "GET", path)[0] == 200
    assert ask_grpc(administered.config.grpc_port, "ServerReady", {}) == grpc.StatusCode.OK


@pytest.mark.server
def test_the_token_is_in_no_command_line_and_no_log(administered: Server) -> None:
    assert administered.door is not None
    family = [psutil.Process(administered.door.pid), *family_of(administered)]
    lines = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in family]
    assert len(lines) == 4 and "@BERTENDER_ADMIN_TOKEN" in lines[1]
    assert f"{ADMIN_HEADER}=****" in lines[2], "overwritten once Triton has read the door's own"
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
