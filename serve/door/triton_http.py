"""An HTTP/1.1 client of Triton with persistent connections, each with one request at a time.

gRPC would take more of the event loop's time. Triton's parser of HTTP, which crashes at
some malformed bodies, only gets what this module writes from validated requests.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import httptools
import msgspec

from serve.wire import ADMIN_HEADER, HEADER_LENGTH, Tensor

UNIX = "unix:"
"""Start of the address of a socket in the file system."""
MOST_IDLE = 64
"""Most idle connections."""


@dataclass
class Answer:
    """Triton's answer to a request."""

    status: int = 0
    json_bytes: int | None = None
    """Size of the JSON before tensors; None without tensors."""
    body: bytes = b""

    def json(self) -> Any:
        return msgspec.json.decode(self.body[: self.json_bytes] or b"null")

    def error(self) -> str:
        """Return the reason in an answer that is an error."""
        try:
            return str(self.json()["error"])
        except (msgspec.DecodeError, TypeError, KeyError):
            return f"status {self.status}: {self.body[:200].decode(errors='replace')}"

    def tensors(self) -> tuple[Tensor, ...]:
        """Return the outputs of an inference."""
        assert self.json_bytes is not None
        end, tensors = self.json_bytes, []
        for each in OUTPUTS.decode(self.body[:end]).outputs:
            begin, end = end, end + each.parameters.binary_data_size
            data = self.body[begin:end]
            tensors.append(Tensor(each.name, each.datatype, each.shape, data))
        return tuple(tensors)


class _BinarySize(msgspec.Struct):
    binary_data_size: int


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: _BinarySize


class _Outputs(msgspec.Struct):
    outputs: list[_Output]


OUTPUTS = msgspec.json.Decoder(_Outputs)


class _Connection(asyncio.Protocol):
    """A connection; `ask` may be called again when it has returned."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.parser = httptools.HttpResponseParser(self)
        self.answer = Answer()
        self.parts: list[bytes] = []
        self.waiting: asyncio.Future[Answer] | None = None
        self.is_open = False

    async def ask(self, content: bytes) -> Answer:
        assert self.transport is not None
        self.answer, self.parts = Answer(), []
        self.waiting = asyncio.get_running_loop().create_future()
        self.transport.write(content)
        return await self.waiting

    def close(self) -> None:
        assert self.transport is not None
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport, self.is_open = cast(asyncio.Transport, transport), True

    def data_received(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_open = False
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_exception(ConnectionResetError("Triton closed the connection"))

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == HEADER_LENGTH.encode():
            self.answer.json_bytes = int(value)

    def on_body(self, body: bytes) -> None:
        self.parts.append(body)

    def on_message_complete(self) -> None:
        self.answer.status = self.parser.get_status_code()
        self.answer.body = b"".join(self.parts)
        self.is_open = self.parser.should_keep_alive()
        if self.waiting is not None and not self.waiting.done():
            self.waiting.set_result(self.answer)


@dataclass
class TritonHttp:
    """Connections to one Triton, as many as there are requests at a time.

    Args:
        address: `unix:PATH`, or `HOST:PORT`.
        token: token of its routes; empty if they are open.
    """

    address: str
    token: str
    _idle: list[_Connection] = field(default_factory=list)
    _busy: set[_Connection] = field(default_factory=set)
    _is_closed: bool = False

    async def ask(
        self, method: str, path: str, content: object = None, data: Sequence[bytes] = ()
    ) -> Answer:
        """Return the answer to a request. A caller that is cancelled ends the connection.

        Args:
            method: method of the request.
            path: path with its characters quoted.
            content: JSON of its body; none if None.
            data: tensors behind the JSON.

        Raises:
            UnsentError: there is no connection, and Triton has not got the request.
            ConnectionResetError: the connection ended before the answer.
        """
        body = b"" if content is None else msgspec.json.encode(content)
        size = len(body) + sum(map(len, data))
        lines = [f"{method} {path} HTTP/1.1", "Host: triton", f"Content-Length: {size}"]
        if self.token:
            lines.append(f"{ADMIN_HEADER}: {self.token}")
        if data:
            lines.append(f"{HEADER_LENGTH}: {len(body)}")
        head = "\r\n".join([*lines, "", ""]).encode()
        connection = await self._connection()
        self._busy.add(connection)
        try:
            answer = await connection.ask(b"".join([head, body, *data]))
        except BaseException:
            connection.close()
            raise
        finally:
            self._busy.discard(connection)
        if connection.is_open and len(self._idle) < MOST_IDLE and not self._is_closed:
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def _connection(self) -> _Connection:
        while self._idle:
            if (connection := self._idle.pop()).is_open:
                return connection
        loop = asyncio.get_running_loop()
        try:
            if self.address.startswith(UNIX):
                path = self.address.removeprefix(UNIX)
                _, connection = await loop.create_unix_connection(_Connection, path)
            else:
                host, _, port = self.address.rpartition(":")
                host = host.removeprefix("[").removesuffix("]")
                _, connection = await loop.create_connection(_Connection, host, int(port))
        except OSError as error:
            raise UnsentError(str(error)) from None
        if self._is_closed:
            connection.close()
            raise UnsentError("the connections were closed")
        return connection

    def close(self) -> None:
        """End all connections, also those of requests."""
        self._is_closed = True
        for each in (*self._idle, *self._busy):
            each.close()
        self._idle.clear()


class UnsentError(ConnectionError):
    """There is no connection to Triton."""
