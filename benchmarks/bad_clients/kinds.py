"""KINDS: clients that send bad requests over HTTP, or hold connections and send next to nothing."""

from __future__ import annotations

import gzip
import http.client
import itertools
import json
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pydantic import Field

from bertender.core.config import Record
from serve.config import ServeConfig
from serve.wire import MODEL_NAME

__all__ = ["CONNECTIONS", "KINDS", "Act", "Ends", "Target"]

CONNECTIONS = 500
"""Without a request."""
SLOW_CLIENTS = 10
LEVELS = 10_000
"""Of nested JSON."""
BOMB_BYTES = 2**26
"""Once it is unpacked."""
TIMEOUT_S = 10.0
"""Longest wait for a response."""

HEAD = f"POST /v2/models/{MODEL_NAME}/infer HTTP/1.1\r\nHost: endpoint\r\n".encode()


class Target(Record):
    """A server, and how often it gets a bad request."""

    host: str
    port: int
    pause_s: float
    ca_file: Path | None = Field(None, description="of a server with TLS")
    headers: Mapping[str, str] = Field({}, description="of every request")


Ends = Callable[[float], bool]
"""Waits so many seconds, after a first act; returns whether the client is to end now."""
Act = Callable[[Target, Ends], Counter[str]]
"""Acts until the end; returns the statuses of responses, or what became of connections."""


def _repeated(make: Callable[[], bytes], truncated: bool = False) -> Act:
    """Return what sends the same bytes again and again, each time on a new connection."""

    def act(target: Target, ends: Ends) -> Counter[str]:
        content, responses = _with_headers(make(), target), Counter[str]()
        while True:
            responses[_exchange(target, content, truncated)] += 1
            if ends(target.pause_s):
                return responses

    return act


def _exchange(target: Target, content: bytes, truncated: bool) -> str:
    """Send bytes, and nothing more where they are truncated; return the status of the response."""
    with _connected(target) as connection:
        try:
            connection.sendall(content)
            if truncated and target.ca_file is not None:
                return "left"  # Python's `ssl` cannot end one direction and read on
            if truncated:
                connection.shutdown(socket.SHUT_WR)
            response = http.client.HTTPResponse(connection)
            response.begin()
            response.read()
        except TimeoutError:
            return f"no response in {TIMEOUT_S:g} s"
        except (OSError, http.client.HTTPException):
            return "closed without a response"
    return str(response.status)


def _send_slowly(target: Target, ends: Ends) -> Counter[str]:
    """Send a byte a second on each of some connections: a request whose head has no end."""
    with ExitStack() as stack:
        clients = [stack.enter_context(_connected(target)) for _ in range(SLOW_CLIENTS)]
        for byte in itertools.chain(HEAD, itertools.repeat(ord("a"))):
            for client in clients:
                with suppress(OSError):  # closed by the server, which `_state` reports
                    client.sendall(bytes([byte]))
            if ends(1.0):
                break
        return Counter(map(_state, clients))


def _hold_connections(target: Target, ends: Ends) -> Counter[str]:
    """Open many connections, and send nothing."""
    with ExitStack() as stack:
        clients = [stack.enter_context(_connected(target)) for _ in range(CONNECTIONS)]
        while not ends(1.0):
            pass
        return Counter(map(_state, clients))


def _with_headers(content: bytes, target: Target) -> bytes:
    """Return a request with the headers that the server wants of every request."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in target.headers.items())
    return HEAD + lines.encode() + content.removeprefix(HEAD)


def _connected(target: Target) -> socket.socket:
    connection = socket.create_connection((target.host, target.port), timeout=TIMEOUT_S)
    if target.ca_file is None:
        return connection
    context = ssl.create_default_context(cafile=target.ca_file)
    return context.wrap_socket(connection, server_hostname=target.host)


def _state(client: socket.socket) -> str:
    """Return what became of a connection without a whole request."""
    client.setblocking(False)
    try:
        return "a response" if client.recv(1) else "closed"
    except (BlockingIOError, ssl.SSLWantReadError):
        return "still open"
    except OSError:
        return "closed"


def _post(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in (f"Content-Length: {len(body)}", *headers))
    return HEAD + f"{lines}\r\n".encode() + body


def _tensor(data: Sequence[Any], **changes: Any) -> bytes:
    """Return the JSON of a request: texts, with changes of the tensor that holds them."""
    tensor = {"name": "TEXT", "shape": [len(data), 1], "datatype": "BYTES", "data": data}
    return json.dumps({"inputs": [{**tensor, **changes}]}).encode()


def _invalid_utf8() -> bytes:
    """Return a request whose text follows its JSON, since JSON holds no invalid UTF-8."""
    text = b"\xff\xfe"
    size = {"binary_data_size": 4 + len(text)}
    tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "parameters": size}
    head = json.dumps({"inputs": [tensor]}).encode()
    body = head + len(text).to_bytes(4, "little") + text
    return _post(body, f"Inference-Header-Content-Length: {len(head)}")


def _over_the_limit() -> bytes:
    return _post(_tensor(["a text"] * (ServeConfig().max_batch_size + 1)))


def _nested() -> bytes:
    inside = b"[" * LEVELS + b'"a text"' + b"]" * LEVELS
    return _post(_tensor([0]).replace(b"[0]", inside))


def _truncated() -> bytes:
    whole = _post(_tensor(["a text"]))
    return whole[:-10]


def _gzip_bomb() -> bytes:
    return _post(gzip.compress(b" " * BOMB_BYTES), "Content-Encoding: gzip")


KINDS: Mapping[str, Act] = {
    "a text of 1 MB": _repeated(lambda: _post(_tensor(["a" * 2**20]))),
    "invalid UTF-8": _repeated(_invalid_utf8),
    "wrong dtype": _repeated(lambda: _post(_tensor([1.0], datatype="FP32"))),
    "wrong shape": _repeated(lambda: _post(_tensor(["a", "b"], shape=[1, 2]))),
    "batch over the limit": _repeated(_over_the_limit),
    "malformed JSON": _repeated(lambda: _post(b"{")),
    f"JSON of {LEVELS:,} levels": _repeated(_nested),
    "truncated body": _repeated(_truncated, truncated=True),
    f"gzip bomb of {BOMB_BYTES // 2**20} MB": _repeated(_gzip_bomb),
    f"{SLOW_CLIENTS} that send a byte a second": _send_slowly,
    f"{CONNECTIONS} idle connections": _hold_connections,
}
"""Kind of bad client -> the function that acts as one."""
