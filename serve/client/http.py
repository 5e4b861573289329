"""HTTP: tritonclient on geventhttpclient, and on aiohttp."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import aiohttp
import gevent
import tritonclient.http
import tritonclient.http.aio
from geventhttpclient import HTTPParseError
from geventhttpclient.response import HTTPConnectionClosed

from serve.client.failures import (
    ABSENT,
    BROKEN,
    CLOSED,
    LATE,
    OVERLOADED,
    UNAUTHORIZED,
    UNTRUSTED,
    Failure,
)
from serve.client.protocol import TRUNCATING, Headers, Protocol, failure_of

if TYPE_CHECKING:
    from serve.client.access import Access

MOST_CONNECTIONS = 1000

STATUSES = {
    "401": UNAUTHORIZED,
    "403": UNAUTHORIZED,
    "429": OVERLOADED,
    "502": CLOSED,
    "503": OVERLOADED,
    "504": LATE,
}
"""502 and 504 are a proxy's words for a server that closed the connection or is late."""

KINDS = (
    (TimeoutError, LATE),
    ((ssl.SSLEOFError, ssl.SSLZeroReturnError), CLOSED),
    ((ssl.SSLError, aiohttp.ClientSSLError), UNTRUSTED),
    ((ConnectionRefusedError, aiohttp.ClientConnectorError), ABSENT),
    ((ConnectionResetError, BrokenPipeError, aiohttp.ClientOSError), CLOSED),
    ((HTTPConnectionClosed, aiohttp.ServerDisconnectedError), CLOSED),
    ((OSError, RuntimeError, ValueError, HTTPParseError, aiohttp.ClientError), BROKEN),
)


def _connect(address: str, access: Access, timeout_s: float) -> Any:
    return tritonclient.http.InferenceServerClient(
        address,
        connection_timeout=timeout_s,
        network_timeout=timeout_s,
        ssl=access.context is not None,
        ssl_options=_ssl_options(access),
    )


def _ssl_options(access: Access) -> dict[str, str]:
    """Return the files of TLS: geventhttpclient makes a context of its own, for its sockets."""
    files = {"ca_certs": access.trusted_file}
    if own := access.certificate_files:
        files |= dict(zip(("certfile", "keyfile"), own, strict=True))
    return {name: str(file) for name, file in files.items() if file}


def _connect_async(address: str, access: Access) -> Any:
    return tritonclient.http.aio.InferenceServerClient(
        address,
        conn_limit=MOST_CONNECTIONS,
        conn_timeout=None,
        ssl=access.context is not None,
        ssl_context=access.context,
    )


def _model_config(client: Any, model: str, timeout_s: float, headers: Headers) -> Any:
    return client.get_model_config(model, headers=dict(headers))


def _infer(
    client: Any, model: str, inputs: Sequence[Any], timeout_s: float, headers: Headers
) -> Any:
    return client.infer(model, inputs, parameters=TRUNCATING, headers=dict(headers))


def _limit(timeout_s: float) -> gevent.Timeout:
    """Return a limit on the block as a whole: the connection's own is one for each read."""
    return gevent.Timeout(timeout_s, TimeoutError(f"no response within {timeout_s:.3g} s"))


def _failure(error: Exception) -> Failure | None:
    if isinstance(error, aiohttp.ClientConnectorError) and isinstance(
        error.os_error, ConnectionResetError
    ):
        return CLOSED  # in a handshake of TLS: something listens
    return failure_of(error, STATUSES, KINDS)


HTTP = Protocol(
    name="http",
    default_port=8000,
    tensor=tritonclient.http.InferInput,
    connect=_connect,
    connect_async=_connect_async,
    model_config=_model_config,
    config_of=dict,
    infer=_infer,
    limit=_limit,
    limit_async=asyncio.timeout,
    failure=_failure,
)
