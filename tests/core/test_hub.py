"""Whether a hub answers: asked of small servers on loopback, never of a real one."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from huggingface_hub import constants

from bertender.core.hub import PROBE_SECONDS, hub_knows
from tests.online import forget_sessions


class _Hub(BaseHTTPRequestHandler):
    """Knows one model."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/api/models/known" else 404)
        self.end_headers()

    def log_message(self, *ignored: object) -> None:
        """Print nothing."""


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the hub library use the network, which the tests otherwise forbid it."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    forget_sessions()
    yield
    monkeypatch.undo()
    forget_sessions()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, online: None) -> Iterator[None]:
    server = HTTPServer(("127.0.0.1", 0), _Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(("name", "answer"), [("known", True), ("unknown", False)])
def test_a_hub_answers(name: str, answer: bool) -> None:
    assert hub_knows(f"api/models/{name}") is answer


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize("listens", [True, False])
def test_no_answer_within_the_wait(listens: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        if listens:
            silent.listen()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{silent.getsockname()[1]}")
        start = time.monotonic()
        assert not hub_knows("api/models/known", seconds=0.3)
        assert time.monotonic() - start < PROBE_SECONDS


def test_offline_mode_asks_nobody() -> None:
    assert constants.HF_HUB_OFFLINE and not hub_knows("api/models/known")
