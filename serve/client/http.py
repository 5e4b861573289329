"""HTTP of a connection without asyncio, with a deadline for each request.

tritonclient's own client runs on gevent: it works in the thread that has opened it alone and not
after a fork, and leaves a thread and two open files in each thread that has used it.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from serve.client.access import Access
from serve.wire import HEADER_LENGTH


class TimedReader(io.RawIOBase):
    """Reads a socket until a deadline; the socket's own limit is that of each read."""

    def __init__(self, source: socket.socket, deadline: float) -> None:
        self.source = source
        self.raw = source.makefile("rb", buffering=0)
        self.deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        self.source.settimeout(_left(self.deadline))
        return self.raw.readinto(buffer)

    def close(self) -> None:
        self.raw.close()
        super().close()


class TimedResponse(http.client.HTTPResponse):
    """A response that is read until a deadline."""

    def __init__(self, deadline: float, source: socket.socket, **settings: Any) -> None:
        super().__init__(source, **settings)
        self.fp.close()
        self.fp = io.BufferedReader(TimedReader(source, deadline))


def _left(deadline: float) -> float:
    if (left_s := deadline - time.monotonic()) <= 0:
        raise TimeoutError("no response in time")
    return left_s


class HttpClient:
    """A client of a server, for any thread, also of a forked process.

    Args:
        address: host:port.
        access: TLS settings.
    """

    def __init__(self, address: str, access: Access) -> None:
        self.address = address
        self.context = access.context
        self.process = os.getpid()
        self._idle: list[http.client.HTTPConnection] = []

    def get_model_config(self, model: str, *, timeout_s: float, headers: Mapping[str, str]) -> Any:
        """Return the configuration of a model."""
        _, body = self._ask("GET", f"/v2/models/{quote(model)}/config", None, timeout_s, headers)
        return json.loads(body)

    def infer(
        self,
        model: str,
        inputs: Sequence[Any],
        *,
        parameters: Mapping[str, Any],
        timeout_s: float,
        headers: Mapping[str, str],
    ) -> Any:
        """Return tritonclient's result for its tensors."""
        from tritonclient.http import InferenceServerClient

        body, size = InferenceServerClient.generate_request_body(inputs, parameters=parameters)
        own = {**headers, HEADER_LENGTH: str(size)}
        path = f"/v2/models/{quote(model)}/infer"
        response, content = self._ask("POST", path, body, timeout_s, own)
        length = response.getheader(HEADER_LENGTH)
        return InferenceServerClient.parse_response_body(
            content, header_length=length and int(length)
        )

    def close(self) -> None:
        """Close the connections that are not in use."""
        while self._idle:
            self._idle.pop().close()

    def _ask(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        headers: Mapping[str, str],
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Return a response and its content.

        Raises:
            InferenceServerException: its status is not 200.
            OSError, HTTPException: there is none.
        """
        deadline = time.monotonic() + timeout_s
        connection = self._connection(deadline)
        try:
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = response.read()
        except BaseException:
            connection.close()  # a late response would be taken for the next request's
            raise
        if connection.sock is not None:  # else the server has closed it
            self._idle.append(connection)
        if response.status != http.HTTPStatus.OK:
            raise _refusal(response.status, content)
        return response, content

    def _connection(self, deadline: float) -> http.client.HTTPConnection:
        """Return a connection that nobody uses."""
        if self.process != os.getpid():  # the other process uses them
            self.process = os.getpid()
            self.close()
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._opened(deadline)
        if not _is_open(connection):
            connection.close()
            connection = self._opened(deadline)
        connection.sock.settimeout(_left(deadline))
        connection.response_class = partial(TimedResponse, deadline)  # type: ignore[assignment]
        return connection

    def _opened(self, deadline: float) -> http.client.HTTPConnection:
        connection = (
            http.client.HTTPConnection(self.address)
            if self.context is None
            else http.client.HTTPSConnection(self.address, context=self.context)
        )
        connection.timeout = _left(deadline)
        connection.connect()
        return connection


def _is_open(connection: http.client.HTTPConnection) -> bool:
    """Return whether an idle connection may still be used: nothing is to be read from it, neither
    its end nor the response to a request that was given up."""
    with selectors.DefaultSelector() as selector:
        selector.register(connection.sock, selectors.EVENT_READ)
        return not selector.select(0)


def _refusal(status: int, content: bytes) -> Exception:
    from tritonclient.utils import InferenceServerException

    try:
        reason = str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):  # of a proxy
        reason = content.decode(errors="replace") or "an empty response"
    error: Exception = InferenceServerException(reason, status=str(status))
    return error
