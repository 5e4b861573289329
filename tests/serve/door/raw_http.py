"""HTTP as its bytes: requests that no client library sends, and what comes back."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO

HEAD = "POST /v2/models/classifier/infer HTTP/1.1\r\nHost: door\r\n"


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["plum"], **changes}


def body(more: Mapping[str, Any] | None = None, **changes: Any) -> bytes:
    return json.dumps({"inputs": [tensor(**changes)], **(more or {})}).encode()


def post(content: bytes, *headers: str, path: str = "/v2/models/classifier/infer") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: door", f"Content-Length: {len(content)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + content


def read_answer(connection: socket.socket) -> Answer | None:
    """Return the next answer on a connection; None where it ends first."""
    return _next(connection.makefile("rb"))


def read_answers(connection: socket.socket) -> list[Answer]:
    """Return all answers until a connection ends."""
    reader = connection.makefile("rb")
    return [*iter(lambda: _next(reader), None)]


def _next(reader: BinaryIO) -> Answer | None:
    try:
        line = reader.readline()
        if not line:
            return None
        headers = {}
        while field := reader.readline().strip():
            name, _, value = field.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        content = reader.read(int(headers.get("content-length", 0)))
        return Answer(int(line.split()[1]), headers, content)
    except ConnectionError:
        return None


def exchange(port: int, content: bytes, timeout_s: float = 20) -> Answer | None:
    """Send bytes on a connection of their own, and return the answer."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        with suppress(ConnectionError):  # it answered before it had all of them
            connection.sendall(content)
        return read_answer(connection)


def get(port: int, path: str, *headers: str, method: str = "GET") -> Answer:
    lines = [f"{method} {path} HTTP/1.1", "Host: door", *headers, "", ""]
    answer = exchange(port, "\r\n".join(lines).encode())
    assert answer is not None
    return answer
