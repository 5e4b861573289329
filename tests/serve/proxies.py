"""A real nginx with the configuration of deploy/, and requests to it."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bertender.core.errors import ServerMissingError
from tests.serve.nginx import Nginx, make_certificate, nginx_before, nginx_binary

__all__ = ["KEY", "SECRET", "Proxy", "proxy_before", "skipped_where_absent"]

SECRET = "0123456789abcdef" * 4  # as long as that of the documented command
KEY = f"Bearer {SECRET}"


class Proxy(Nginx):
    """A running nginx, and what it answers."""

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.certificate))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)

    def ask(
        self,
        method: str,
        path: str,
        body: str | bytes | Iterator[bytes] = "",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        connection = self.connect()
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


@contextmanager
def proxy_before(
    http_port: int, folder: Path, rate: tuple[int, int] | None = None
) -> Iterator[Proxy]:
    """Run nginx in front of a server until the block ends.

    With `rate`, a client has so many requests a second, and so many more at once.
    """
    with skipped_where_absent():
        nginx_binary()
        make_certificate(folder)
    with nginx_before(http_port, folder, key=SECRET, rate=rate) as running:
        yield Proxy(running.port, running.folder)


@contextmanager
def skipped_where_absent() -> Iterator[None]:
    """Skip the test where the block needs a program that is not installed."""
    try:
        yield
    except ServerMissingError as error:
        pytest.skip(str(error))
