"""PROTOCOLS: HTTP and gRPC by the modules of tritonclient, and what their errors mean.

The modules are imported where they are used: a second of processor time, which `--help` and
settings do without.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any, ClassVar

from serve.client.access import Access
from serve.client.failures import (
    ABSENT,
    BROKEN,
    CLOSED,
    LATE,
    LONGEST_WAIT_S,
    OVERLOADED,
    REFUSED,
    UNAUTHORIZED,
    UNTRUSTED,
    Failure,
)
from serve.probe import NO_ROOM
from serve.wire import TRUNCATE

TRUNCATING = {TRUNCATE: True}
"""Parameters of a request whose texts may be longer than the model's input, as locally."""

STUB_DIED = "is not healthy"
"""Part of Triton's response to a request that the process of the model died with, a 500; the server
goes on, or starts again."""

Headers = Mapping[str, str]
"""Of one request: the key of the server."""

Kinds = Sequence[tuple[type[Exception] | tuple[type[Exception], ...], Failure]]
"""Classes of errors that a client raises -> what they mean; the first that fits counts."""


class Protocol(ABC):
    """A row of PROTOCOLS: clients of a server, with and without asyncio, and their errors."""

    name: ClassVar[str]
    statuses: ClassVar[Mapping[str, Failure]]
    """Status of a response -> what it means; others are refusals."""

    @abstractmethod
    def tensor(self, name: str, shape: Sequence[int], datatype: str) -> Any:
        """Return an input tensor."""

    @abstractmethod
    def connect(self, address: str, access: Access, timeout_s: float) -> Any:
        """Return a client of host:port."""

    @abstractmethod
    def connect_async(self, address: str, access: Access) -> Any:
        """Return a client of host:port whose methods are awaited."""

    @abstractmethod
    def model_config(self, client: Any, model: str, timeout_s: float, headers: Headers) -> Any:
        """Ask about a model by a client of either kind."""

    def config_of(self, response: Any) -> dict[str, Any]:
        """Return the configuration in a response about a model."""
        return dict(response)

    @abstractmethod
    def infer(
        self, client: Any, model: str, inputs: Sequence[Any], timeout_s: float, headers: Headers
    ) -> Any:
        """Ask a model about input tensors by a client of either kind."""

    def limit(self, timeout_s: float) -> AbstractContextManager[Any]:
        """Return what ends a block that takes longer, where the client itself does not."""
        return nullcontext()

    def limit_async(self, timeout_s: float) -> AbstractAsyncContextManager[Any]:
        """As `limit`, for asyncio."""
        return nullcontext()

    @property
    @abstractmethod
    def kinds(self) -> Kinds:
        """Errors of the clients that are no response of a server."""

    def refusal(self, status: str, message: str = "") -> Failure:
        """Return what a response with the status of an error means."""
        if NO_ROOM in message:
            return OVERLOADED
        if STUB_DIED in message:
            return CLOSED
        return self.statuses.get(status, REFUSED)

    def failure(self, error: Exception) -> Failure | None:
        """Return what an error of these clients means; None for an error that is not theirs."""
        from tritonclient.utils import InferenceServerException

        if isinstance(error, InferenceServerException):
            return self.refusal(error.status() or "", error.message() or "")
        return next((failure for kind, failure in self.kinds if isinstance(error, kind)), None)


class Http(Protocol):
    """HTTP: tritonclient on geventhttpclient, and on aiohttp."""

    name = "http"
    statuses: ClassVar[Mapping[str, Failure]] = {
        "401": UNAUTHORIZED,
        "403": UNAUTHORIZED,
        "429": OVERLOADED,
        "502": CLOSED,
        "503": OVERLOADED,
        "504": LATE,
    }
    """502 and 504 are a proxy's words for a server that closed the connection or is late."""
    most_connections = 1000

    def tensor(self, name: str, shape: Sequence[int], datatype: str) -> Any:
        import tritonclient.http

        return tritonclient.http.InferInput(name, shape, datatype)

    def connect(self, address: str, access: Access, timeout_s: float) -> Any:
        import tritonclient.http

        # geventhttpclient makes a context of its own, for its sockets
        files = {"ca_certs": access.trusted_file}
        if own := access.certificate_files:
            files |= dict(zip(("certfile", "keyfile"), own, strict=True))
        return tritonclient.http.InferenceServerClient(
            address,
            connection_timeout=timeout_s,
            network_timeout=timeout_s,
            ssl=access.context is not None,
            ssl_options={name: str(file) for name, file in files.items() if file},
        )

    def connect_async(self, address: str, access: Access) -> Any:
        import tritonclient.http.aio

        return tritonclient.http.aio.InferenceServerClient(
            address,
            conn_limit=self.most_connections,
            conn_timeout=None,
            ssl=access.context is not None,
            ssl_context=access.context,
        )

    def model_config(self, client: Any, model: str, timeout_s: float, headers: Headers) -> Any:
        return client.get_model_config(model, headers=dict(headers))

    def infer(
        self, client: Any, model: str, inputs: Sequence[Any], timeout_s: float, headers: Headers
    ) -> Any:
        return client.infer(model, inputs, parameters=TRUNCATING, headers=dict(headers))

    def limit(self, timeout_s: float) -> AbstractContextManager[Any]:
        """Limit the block as a whole: the connection's own limit is one for each read."""
        import gevent

        limit: AbstractContextManager[Any] = gevent.Timeout(
            timeout_s, TimeoutError(f"no response within {timeout_s:.3g} s")
        )
        return limit

    def limit_async(self, timeout_s: float) -> AbstractAsyncContextManager[Any]:
        return asyncio.timeout(timeout_s)

    @functools.cached_property
    def kinds(self) -> Kinds:
        import aiohttp
        from geventhttpclient import HTTPParseError
        from geventhttpclient.response import HTTPConnectionClosed

        return (
            (TimeoutError, LATE),
            ((ssl.SSLEOFError, ssl.SSLZeroReturnError), CLOSED),
            ((ssl.SSLError, aiohttp.ClientSSLError), UNTRUSTED),
            ((ConnectionRefusedError, aiohttp.ClientConnectorError), ABSENT),
            ((ConnectionResetError, BrokenPipeError, aiohttp.ClientOSError), CLOSED),
            ((HTTPConnectionClosed, aiohttp.ServerDisconnectedError), CLOSED),
            ((OSError, RuntimeError, ValueError, HTTPParseError, aiohttp.ClientError), BROKEN),
        )

    def failure(self, error: Exception) -> Failure | None:
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
            error.os_error, ConnectionResetError
        ):
            return CLOSED  # in a handshake of TLS: something listens
        return super().failure(error)


class Grpc(Protocol):
    """gRPC: tritonclient on grpcio, and on its asyncio half."""

    name = "grpc"
    unavailable = "StatusCode.UNAVAILABLE"
    statuses: ClassVar[Mapping[str, Failure]] = {
        unavailable: OVERLOADED,
        "StatusCode.RESOURCE_EXHAUSTED": OVERLOADED,
        "StatusCode.DEADLINE_EXCEEDED": LATE,
        "StatusCode.UNAUTHENTICATED": UNAUTHORIZED,
        "StatusCode.PERMISSION_DENIED": UNAUTHORIZED,
    }
    transport_failures: ClassVar[Mapping[str, Failure]] = {
        "failed to connect to all addresses": ABSENT,
        "DNS resolution failed": ABSENT,
        "errors resolving": ABSENT,
        "Stream removed": CLOSED,
        "Socket closed": CLOSED,
        "recvmsg:": CLOSED,
        "sendmsg:": CLOSED,
        "GOAWAY": CLOSED,
        "Connection reset": CLOSED,
        "keepalive watchdog timeout": CLOSED,
    }
    """How the messages of grpcio begin where UNAVAILABLE does not come from a server."""
    handshake_failures = ("handshake failed", "Hostname Verification", "peer certificate")
    """Words of grpcio's messages where TLS is at fault, which it counts among unreachable
    addresses."""
    channel_options = (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # else a retry would fail without a connection: by default the first is tried after a second
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", int(1000 * LONGEST_WAIT_S)),
        ("grpc.use_local_subchannel_pool", 1),  # else endpoints would share one connection
        # as over HTTP: what is sent to this machine, an API key among it, must not go by another
        ("grpc.enable_http_proxy", 0),
    )
    kinds: Kinds = (((OSError, RuntimeError, ValueError), BROKEN),)

    def tensor(self, name: str, shape: Sequence[int], datatype: str) -> Any:
        import tritonclient.grpc

        return tritonclient.grpc.InferInput(name, shape, datatype)

    def credentials(self, access: Access) -> Any:
        """Return the credentials of a channel; None for one without TLS."""
        if access.context is None:
            return None
        import grpc

        trusted, own = access.trusted_file, access.certificate_files
        return grpc.ssl_channel_credentials(
            root_certificates=trusted and trusted.read_bytes(),
            private_key=own and own[1].read_bytes(),
            certificate_chain=own and own[0].read_bytes(),
        )

    def connect(self, address: str, access: Access, timeout_s: float) -> Any:
        import tritonclient.grpc

        return tritonclient.grpc.InferenceServerClient(
            address, creds=self.credentials(access), channel_args=self.channel_options
        )

    def connect_async(self, address: str, access: Access) -> Any:
        import tritonclient.grpc.aio

        return tritonclient.grpc.aio.InferenceServerClient(
            address, creds=self.credentials(access), channel_args=self.channel_options
        )

    def model_config(self, client: Any, model: str, timeout_s: float, headers: Headers) -> Any:
        return client.get_model_config(
            model, as_json=True, client_timeout=timeout_s, headers=dict(headers)
        )

    def config_of(self, response: Any) -> dict[str, Any]:
        return dict(response["config"])

    def infer(
        self, client: Any, model: str, inputs: Sequence[Any], timeout_s: float, headers: Headers
    ) -> Any:
        return client.infer(
            model,
            inputs,
            parameters=TRUNCATING,
            client_timeout=timeout_s,
            headers=dict(headers),
        )

    def refusal(self, status: str, message: str = "") -> Failure:
        """Return what a status means; grpcio says UNAVAILABLE itself without a connection."""
        if status == self.unavailable:
            if any(words in message for words in self.handshake_failures):
                return UNTRUSTED
            for beginning, failure in self.transport_failures.items():
                if message.startswith(beginning):
                    return failure
        return super().refusal(status, message)


HTTP, GRPC = Http(), Grpc()

PROTOCOLS: Mapping[str, Protocol] = {each.name: each for each in (HTTP, GRPC)}
