"""uvicorn with limits on connections, heads and bodies, which it lacks.

uvicorn only limits the time between requests: a client that sends a byte now and then keeps its
connection for ever. https://github.com/Kludex/uvicorn/issues/157
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import socket
import sys
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

import msgspec
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from serve.door.service import DoorSettings

BACKLOG = 2048
ACCEPT_AGAIN_S = 0.1
LEAVE_S = 10
CLOSING_S, LINGER_S = 1.0, 5.0
"""Time in which a client reads the end of a closed connection: if others need room, and at most."""
MOST_PARTS = 100_000
"""Most chunks of a body: a million chunks of a byte each keep a core busy."""

BODY_HEADERS = (b"content-length", b"transfer-encoding")
TOO_MANY_CONNECTIONS = 503
MOST_PIPELINED = 32
"""Most requests sent ahead of the response to an earlier one; hardly any client sends one."""


def http_server(
    app: ASGIApp,
    settings: DoorSettings,
    host: str = "127.0.0.1",
    port: int = 0,
    on_refusal: Callable[[int], None] = lambda status: None,
) -> HttpServer:
    """Return the server of an application; its `serve` also takes sockets.

    Args:
        app: application to serve.
        settings: limits, and TLS files.
        host, port: address without sockets; 0 for any free port.
        on_refusal: called with the status of a request that does not reach the application.
    """

    # with a line for each malformed request or disconnected client, anybody could fill the disk;
    # the application logs its own errors
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)

    class Protocol(BoundedProtocol):
        bounds = settings
        refuse = staticmethod(on_refusal)

    return HttpServer(
        uvicorn.Config(
            app,
            host,
            port,
            http=Protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=math.ceil(settings.idle_s),
            timeout_graceful_shutdown=LEAVE_S,
            ssl_certfile=settings.tls_certificate and str(settings.tls_certificate),
            ssl_keyfile=settings.tls_key and str(settings.tls_key),
        ),
        Protocol,
    )


class HttpServer(uvicorn.Server):
    """uvicorn without handlers for the process's signals, and with limits on TLS handshakes."""

    def __init__(self, config: uvicorn.Config, protocol: type[BoundedProtocol]) -> None:
        super().__init__(config)
        self.protocol = protocol

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is None:
            await super().startup(sockets)
            return
        await super().startup([])
        connected = functools.partial(
            asyncio.get_running_loop().connect_accepted_socket,
            functools.partial(self.protocol, self.config, self.server_state, self.lifespan.state),
            ssl=self.config.ssl,
            ssl_handshake_timeout=self.protocol.bounds.head_s,
        )
        for each in sockets or [self.config.bind_socket()]:
            listener = TlsListener(each, connected, self.protocol.bounds.most_connections)
            self.servers.append(listener)  # type: ignore[arg-type]


class TlsListener:
    """Accepts TLS connections, as a server of asyncio, which counts none before its handshake.

    Args:
        bound: socket to listen on.
        connected: coroutine of the handshake of an accepted connection.
        most: most handshakes at a time; the oldest makes room for a new one.
    """

    def __init__(
        self,
        bound: socket.socket,
        connected: Callable[[socket.socket], Coroutine[Any, Any, object]],
        most: int,
    ) -> None:
        self.sockets = (bound,)
        self.connected = connected
        self.most = most
        self.handshakes = OrderedDict[asyncio.Task[None], None]()
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self.accepting = asyncio.create_task(self._accept(bound))
        self.accepting.add_done_callback(lambda done: bound.close())

    def close(self) -> None:
        self.accepting.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait({self.accepting})

    async def _accept(self, bound: socket.socket) -> None:
        while True:
            try:
                accepted, _ = await asyncio.get_running_loop().sock_accept(bound)
            except OSError:  # the client has gone, or too many files are open
                await asyncio.sleep(ACCEPT_AGAIN_S)
                continue
            if len(self.handshakes) >= self.most:
                # it ends later, and must not be the oldest again
                self.handshakes.popitem(last=False)[0].cancel()
            shaking = asyncio.create_task(self._shake(accepted))
            self.handshakes[shaking] = None
            shaking.add_done_callback(lambda done: self.handshakes.pop(done, None))

    async def _shake(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # no TLS, too late, or the client has gone
            await self.connected(accepted)


class BoundedProtocol(HttpToolsProtocol):
    """A connection, with a deadline for each part of a request, and a limit on its head."""

    bounds = DoorSettings()
    refuse: Callable[[int], None]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.deadline: asyncio.TimerHandle | None = None
        self.aborting: asyncio.TimerHandle | None = None
        self.running: RequestResponseCycle | None = None
        """The request that the application has; `cycle` is the last one sent."""
        self.pending_refusal: bytes | None = None
        """Refusal of a pipelined request, after the responses to earlier ones."""
        self.is_in_head = False
        self.head_bytes = self.parts = 0
        """Bytes since a head began or a part of a body arrived; and parts of the body."""
        self.waits_since = self.loop.time()
        """Time when it was opened, its last response was complete, or it was closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self.bounds.most_connections
        if len(self.connections) > most:
            others = [each for each in self.connections if isinstance(each, BoundedProtocol)]
            others.remove(self)
            # neither those whose client does not end them, nor idle ones, may keep others out
            closing = [each for each in others if each.transport.is_closing()]
            oldest = _oldest(closing) if closing else self
            if oldest.waits_since < self.loop.time() - CLOSING_S:
                self.connections.discard(oldest)  # it is lost later, and must not be chosen again
                oldest.transport.abort()
            if len(others) - len(closing) >= most:
                waiting = [each for each in others if each.is_waiting]
                if not waiting:
                    self._end(TOO_MANY_CONNECTIONS, f"{most} connections are open already.")
                    return
                _oldest(waiting).make_room()
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._abort_after(None)
        super().connection_lost(exc)
        if self.running is not None and not self.running.response_complete:
            self.running.disconnected = True
            self.running.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self.head_bytes += len(data)
        super().data_received(data)
        if self.head_bytes > self.bounds.most_head_bytes and not self.transport.is_closing():
            place = "head" if self.is_in_head else "end of the body or of a chunk"
            self._end(431, f"the {place} has more than {self.bounds.most_head_bytes} bytes.")
        elif self.deadline is None and self._is_idle:  # empty lines do not begin a request
            self._expect()

    @property
    def is_waiting(self) -> bool:
        """Whether it waits for its client to send a request, or the rest of one."""
        first = self._first
        return not self.transport.is_closing() and (first is None or first.more_body)

    def make_room(self) -> None:
        """Close a waiting connection to make room for another one."""
        if self._is_idle:  # otherwise it is refused as late
            self.refuse(TOO_MANY_CONNECTIONS)
        self._late()

    def on_response_complete(self) -> None:
        self.waits_since = self.loop.time()
        super().on_response_complete()
        if self.pending_refusal is not None and self._first is None:
            self._respond(self.pending_refusal)
        elif not self.transport.is_closing():
            self._expect()
        elif self.aborting is None:  # after `Connection: close`
            self._abort_after(self.bounds.body_s)

    @property
    def _is_ending(self) -> bool:
        """Whether nothing more is read, and the connection closes after what is under way."""
        return self.transport.is_closing() or self.pending_refusal is not None

    @property
    def _first(self) -> RequestResponseCycle | None:
        """The request whose response is the next."""
        is_over = self.running is None or self.running.response_complete
        return None if is_over else self.running

    @property
    def _is_ahead(self) -> bool:
        """Whether the client sends a request before the response to an earlier one."""
        first = self._first
        is_next = self.is_in_head or self.cycle is not first
        return first is not None and (is_next or not first.more_body)

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress; the body of a refused one may still arrive."""
        return not self.is_in_head and (self.cycle is None or self.cycle.response_complete)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.is_in_head = True
        self.head_bytes = self.parts = 0
        self._expect()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.is_in_head:  # trailers are not read: they would grow without a limit
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.is_in_head = False
        if self._is_ending:  # requests after the end of a connection are not read
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > self.bounds.most_head_bytes:
            self._end(431, f"the head has more than {self.bounds.most_head_bytes} bytes.")
            return
        if self.parser.should_upgrade() and any(name in BODY_HEADERS for name, _ in self.headers):
            # llhttp would take the body for a further request
            self._end(
                400,
                "a request with a body cannot change the protocol. Send it without the header "
                "Upgrade, as HTTP/1.1.",
            )
            return
        super().on_headers_complete()
        self._expect()
        if len(self.pipeline) > MOST_PIPELINED:
            self._end(400, f"more than {MOST_PIPELINED} requests were sent ahead of responses.")
        elif len(self.pipeline) == 1:  # else the end of the connection would not be noticed
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if self._is_ending:
            return
        self.head_bytes = 0
        self.parts += 1
        if self.parts > MOST_PARTS:
            self._end(413, f"the body has more than {MOST_PARTS} chunks.")
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._is_ending:
            super().on_message_complete()
            self._expect()

    def pause_writing(self) -> None:
        """Give the client time to read its response."""
        super().pause_writing()
        self._abort_after(self.bounds.body_s)

    def resume_writing(self) -> None:
        if not self.transport.is_closing():
            self._abort_after(None)
        super().resume_writing()

    def _abort_after(self, seconds: float | None) -> None:
        """Abort the connection after this many seconds; None forgets it."""
        if self.aborting is not None:
            self.aborting.cancel()
            self.aborting = None
        if seconds is not None:
            self.aborting = self.loop.call_later(seconds, self.transport.abort)

    def timeout_keep_alive_handler(self) -> None:
        self._close()

    def send_400_response(self, msg: str) -> None:
        self._end(400, f"this is not an HTTP request: {sys.exception()}.")  # the parser's

    def _expect(self) -> None:
        """Close the connection unless the next part of a request arrives in time. While an earlier
        one has no response, a request sent ahead has time: it may be that nobody reads it."""
        self._cancel_deadline()
        if self._is_ahead:
            return
        bounds = self.bounds
        waits_s = bounds.idle_s if self._is_idle else bounds.body_s
        seconds = bounds.head_s if self.is_in_head else waits_s
        self.deadline = self.loop.call_later(seconds, self._late)

    def _cancel_deadline(self) -> None:
        if self.deadline is not None:
            self.deadline.cancel()
            self.deadline = None

    def _late(self) -> None:
        if self._is_idle:
            self._close()
        else:
            self._end(408, "the request did not arrive in time.")

    def _end(self, status: int, reason: str) -> None:
        """Respond without the application, unless it has begun to respond, and close."""
        if self._is_ending:
            return
        self.refuse(status)
        body = msgspec.json.encode({"error": reason})
        head = (
            f"HTTP/1.1 {status} \r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        response = head.encode() + body
        if self._is_ahead:
            if not self.is_in_head and self.cycle.more_body:
                self.pipeline.popleft()
            self.pending_refusal = response
        else:
            first = self._first
            self._respond(b"" if first is not None and first.response_started else response)

    def _respond(self, response: bytes) -> None:
        self.transport.write(response)
        self._close()

    def _close(self) -> None:
        """Close the connection; after a while, unread bytes are lost."""
        if not self.transport.is_closing():
            self.waits_since = self.loop.time()
            self.transport.close()
            self._abort_after(LINGER_S)


def _oldest(connections: Iterable[BoundedProtocol]) -> BoundedProtocol:
    return min(connections, key=lambda each: each.waits_since)
