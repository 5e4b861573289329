"""PROTOCOLS: HTTP and gRPC with tritonclient, their failures, and retries.

The modules of tritonclient take a second to import, so they are imported only where they are used.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
import ssl
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, ClassVar

from bertender.core.errors import (
    DeadlineError,
    OverloadedError,
    ServingError,
    UnreachableError,
)
from serve.client.access import Access
from serve.client.http import HttpClient
from serve.probe import NO_ROOM
from serve.wire import TRUNCATE

DEFAULT_TIMEOUT_S = 60.0
OPENING_RETRIES = 3
"""Default retries when an endpoint is opened: if nothing listens at a url, it is likely wrong."""
FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0


@dataclass(frozen=True)
class Failure:
    """A kind of failure."""

    error: type[ServingError]
    message: str
    """Message with `{url}` and `{reason}`."""
    most_retries: float = 0
    """Most retries of a request after such failures, within the caller's limit.

    It is unlimited if the server did no work for the request, and one if the server may have begun.
    """

    def explained(self, url: str, reason: object) -> ServingError:
        """Return the error with the next step."""
        return self.error(self.message.format(url=url, reason=reason))


NOBODY = (
    "no endpoint responds at {url} ({reason}). Start one with `bertender serve ARTIFACT`, or give "
    "the address of a running one with --url."
)

OVERLOADED = Failure(
    OverloadedError,
    "the server at {url} rejects requests for now: {reason}. It has more work than it takes on: "
    "send fewer requests at once, or send this one again later.",
    most_retries=math.inf,
)
ABSENT = Failure(UnreachableError, NOBODY, most_retries=math.inf)
"""Nothing listens."""
CLOSED = Failure(
    UnreachableError,
    "the server at {url} closed the connection before a response ({reason}). It may have been "
    "restarted, it may not speak TLS where the url is https://, or this request may have ended it: "
    "see its log, and send the texts again one by one to find out.",
    most_retries=1,
)
"""The connection was closed before the first byte of a response. It may have been idle for too
long, or the request may have crashed the server, and must not crash it after every restart."""
BROKEN = Failure(UnreachableError, NOBODY)
"""The server at the url is not an endpoint, or its response was cut off."""
LATE = Failure(
    DeadlineError,
    "no endpoint responds at {url} in time ({reason}). Allow it longer with timeout_s "
    "(--timeout-s), or send fewer texts in a request.",
)
REFUSED = Failure(ServingError, "the server at {url} refused: {reason}")
UNAUTHORIZED = Failure(
    ServingError,
    "the server at {url} takes no request without a key that it knows. Give the file that holds "
    "one with api_key_file (--api-key-file).",
)
UNTRUSTED = Failure(
    UnreachableError,
    "no trusted TLS connection to {url} ({reason}). Name who signed its certificate with ca_file "
    "(--ca-file), and the server as the certificate names it. A server without TLS is at http:// "
    "or grpc://.",
)


class Tries:
    """The tries of one request, all within its deadline.

    The wait before a retry is drawn between 0 and a bound that doubles each time, so that many
    clients that were rejected together do not come back together.

    Args:
        timeout_s: time from now to the deadline.
        retries: most retries; by default, as many as fit before the deadline.
        clock: returns seconds.
        draw: returns a random number from 0 to 1.
    """

    def __init__(
        self,
        timeout_s: float,
        retries: int | None = None,
        clock: Callable[[], float] = time.monotonic,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.clock = clock
        self.draw = draw
        self.deadline = clock() + timeout_s
        self.left = math.inf if retries is None else retries
        self.failures: Counter[Failure] = Counter()
        self.bound_s = FIRST_WAIT_S

    @property
    def remaining_s(self) -> float:
        """Seconds to the deadline."""
        return max(self.deadline - self.clock(), 0.0)

    def wait_after(self, failure: Failure, error: ServingError) -> float:
        """Return how long to wait before the next try.

        Raises:
            ServingError: `error`, if no try is left in total or for this kind of failure, or if
                the wait would pass the deadline.
        """
        self.failures[failure] += 1
        wait_s = self.draw() * self.bound_s
        if (
            self.failures[failure] > failure.most_retries
            or self.left == 0
            or wait_s >= self.remaining_s
        ):
            raise error from None
        self.left -= 1
        self.bound_s = min(2 * self.bound_s, LONGEST_WAIT_S)
        return wait_s


TRUNCATING = {TRUNCATE: True}
"""Parameters of all requests: too long texts are cut, as in local inference."""

STUB_DIED = "is not healthy"
"""Part of Triton's response (status 500) to a request with which the model's process died; the
server goes on, or restarts."""

Headers = Mapping[str, str]
"""Headers of a request: the API key."""

Kinds = Sequence[tuple[type[Exception] | tuple[type[Exception], ...], Failure]]
"""Failures by classes of client errors; the first that fits counts."""


class Protocol(ABC):
    """A protocol: clients of a server, with and without asyncio, and their errors."""

    name: ClassVar[str]
    statuses: ClassVar[Mapping[str, Failure]]
    """Failures by status of a response; other statuses are refusals."""

    @abstractmethod
    def tensor(self, name: str, shape: Sequence[int], datatype: str) -> Any:
        """Return an input tensor."""

    @abstractmethod
    def connect(self, address: str, access: Access) -> Any:
        """Return a client of host:port."""

    @abstractmethod
    def connect_async(self, address: str, access: Access) -> Any:
        """Return a client of host:port whose methods are awaited."""

    @abstractmethod
    def model_config(self, client: Any, model: str, timeout_s: float, headers: Headers) -> Any:
        """Request the configuration of a model, with a client of either kind."""

    def config_of(self, response: Any) -> dict[str, Any]:
        """Return the configuration in the response of `model_config`."""
        return dict(response)

    @abstractmethod
    def infer(
        self, client: Any, model: str, inputs: Sequence[Any], timeout_s: float, headers: Headers
    ) -> Any:
        """Request predictions for input tensors, with a client of either kind."""

    def limit_async(self, timeout_s: float) -> AbstractAsyncContextManager[Any]:
        """Return a context that limits the time of a block, if the client of asyncio does not."""
        return nullcontext()

    @property
    @abstractmethod
    def kinds(self) -> Kinds:
        """Errors of the clients that are not responses of a server."""

    def refusal(self, status: str, message: str = "") -> Failure:
        """Return the failure of a response with an error status."""
        if NO_ROOM in message:
            return OVERLOADED
        if STUB_DIED in message:
            return CLOSED
        return self.statuses.get(status, REFUSED)

    def failure(self, error: Exception) -> Failure | None:
        """Return the failure of a client error; None for other errors."""
        from tritonclient.utils import InferenceServerException

        if isinstance(error, InferenceServerException):
            return self.refusal(error.status() or "", error.message() or "")
        return next((failure for kind, failure in self.kinds if isinstance(error, kind)), None)


class Http(Protocol):
    """HTTP: `HttpClient`, and tritonclient with aiohttp."""

    name = "http"
    statuses: ClassVar[Mapping[str, Failure]] = {
        "401": UNAUTHORIZED,
        "403": UNAUTHORIZED,
        "429": OVERLOADED,
        "502": CLOSED,
        "503": OVERLOADED,
        "504": LATE,
    }
    """A proxy answers 502 and 504 for a server that closed the connection or is late."""
    most_connections = 1000

    def tensor(self, name: str, shape: Sequence[int], datatype: str) -> Any:
        import tritonclient.http

        return tritonclient.http.InferInput(name, shape, datatype)

    def connect(self, address: str, access: Access) -> Any:
        import tritonclient.http  # noqa: F401 - loaded before the time of a request counts

        return HttpClient(address, access)

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
        return client.get_model_config(model, headers=dict(headers), **_limit(client, timeout_s))

    def infer(
        self, client: Any, model: str, inputs: Sequence[Any], timeout_s: float, headers: Headers
    ) -> Any:
        more = {"parameters": TRUNCATING, **_limit(client, timeout_s)}
        return client.infer(model, inputs, headers=dict(headers), **more)

    def limit_async(self, timeout_s: float) -> AbstractAsyncContextManager[Any]:
        return asyncio.timeout(timeout_s)

    @functools.cached_property
    def kinds(self) -> Kinds:
        import aiohttp

        return (
            (TimeoutError, LATE),
            ((ssl.SSLEOFError, ssl.SSLZeroReturnError), CLOSED),
            ((ssl.SSLError, aiohttp.ClientSSLError), UNTRUSTED),
            ((ConnectionRefusedError, aiohttp.ClientConnectorError), ABSENT),
            ((ConnectionResetError, BrokenPipeError, aiohttp.ClientOSError), CLOSED),
            (aiohttp.ServerDisconnectedError, CLOSED),
            ((OSError, RuntimeError, ValueError, HTTPException, aiohttp.ClientError), BROKEN),
        )

    def failure(self, error: Exception) -> Failure | None:
        import aiohttp

        if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
            error.os_error, ConnectionResetError
        ):
            return CLOSED  # closed in a TLS handshake: something listens
        return super().failure(error)


def _limit(client: Any, timeout_s: float) -> dict[str, float]:
    """Return the arguments of a limit; `limit_async` has that of asyncio's client."""
    return {"timeout_s": timeout_s} if isinstance(client, HttpClient) else {}


class Grpc(Protocol):
    """gRPC: tritonclient with grpcio, and with grpc.aio."""

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
    """Prefixes of grpcio's messages where UNAVAILABLE does not come from a server."""
    handshake_failures = ("handshake failed", "Hostname Verification", "peer certificate")
    """Words in grpcio's messages for TLS errors, which it reports as unreachable addresses."""
    channel_options = (
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # by default grpcio reconnects only after a second, and earlier retries would fail
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.min_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", int(1000 * LONGEST_WAIT_S)),
        ("grpc.use_local_subchannel_pool", 1),  # endpoints would otherwise share one connection
        # as over HTTP: requests to this machine, with their API key, must not go through a proxy
        ("grpc.enable_http_proxy", 0),
    )
    too_large = "message larger than max"
    """Words in grpcio's message for a request that is too large for the server, now and later."""
    kinds: Kinds = (((OSError, RuntimeError, ValueError), BROKEN),)

    def tensor(self, name: str, shape: Sequence[int], datatype: str) -> Any:
        import tritonclient.grpc

        return tritonclient.grpc.InferInput(name, shape, datatype)

    def credentials(self, access: Access) -> Any:
        """Return the credentials of a channel; None without TLS."""
        if access.context is None:
            return None
        import grpc

        trusted, own = access.trusted_file, access.certificate_files
        return grpc.ssl_channel_credentials(
            root_certificates=trusted and trusted.read_bytes(),
            private_key=own and own[1].read_bytes(),
            certificate_chain=own and own[0].read_bytes(),
        )

    def connect(self, address: str, access: Access) -> Any:
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
        """Return the failure of a status; without a connection, grpcio itself says UNAVAILABLE."""
        if self.too_large in message:
            return REFUSED
        if status == self.unavailable:
            if any(words in message for words in self.handshake_failures):
                return UNTRUSTED
            for beginning, failure in self.transport_failures.items():
                if message.startswith(beginning):
                    return failure
        return super().refusal(status, message)


HTTP, GRPC = Http(), Grpc()

PROTOCOLS: Mapping[str, Protocol] = {each.name: each for each in (HTTP, GRPC)}
