"""gRPC: tritonclient on grpcio, and on its asyncio half."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import grpc
import tritonclient.grpc
import tritonclient.grpc.aio
from tritonclient.utils import InferenceServerException

from serve.client.failures import (
    ABSENT,
    BROKEN,
    CLOSED,
    LATE,
    LONGEST_WAIT_S,
    OVERLOADED,
    UNAUTHORIZED,
    UNTRUSTED,
    Failure,
)
from serve.client.protocol import TRUNCATING, Headers, Protocol, failure_of

if TYPE_CHECKING:
    from serve.client.access import Access

CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # else a retry would fail without a connection: by default the first is tried after a second
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", int(1000 * LONGEST_WAIT_S)),
    ("grpc.use_local_subchannel_pool", 1),  # else endpoints would share one connection
    # as over HTTP: what is sent to this machine, an API key among it, must not go by another one
    ("grpc.enable_http_proxy", 0),
)

UNAVAILABLE = "StatusCode.UNAVAILABLE"

STATUSES = {
    UNAVAILABLE: OVERLOADED,
    "StatusCode.RESOURCE_EXHAUSTED": OVERLOADED,
    "StatusCode.DEADLINE_EXCEEDED": LATE,
    "StatusCode.UNAUTHENTICATED": UNAUTHORIZED,
    "StatusCode.PERMISSION_DENIED": UNAUTHORIZED,
}

TRANSPORT_FAILURES = {
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

HANDSHAKE_FAILURES = ("handshake failed", "Hostname Verification", "peer certificate")
"""Words of grpcio's messages where TLS is at fault, which it counts among unreachable addresses."""

KINDS = (((OSError, RuntimeError, ValueError), BROKEN),)


def credentials(access: Access) -> Any:
    """Return the credentials of a channel; None for one without TLS."""
    if access.context is None:
        return None
    trusted, own = access.trusted_file, access.certificate_files
    return grpc.ssl_channel_credentials(
        root_certificates=trusted and trusted.read_bytes(),
        private_key=own and own[1].read_bytes(),
        certificate_chain=own and own[0].read_bytes(),
    )


def _connect(address: str, access: Access, timeout_s: float) -> Any:
    return tritonclient.grpc.InferenceServerClient(
        address, creds=credentials(access), channel_args=CHANNEL_OPTIONS
    )


def _connect_async(address: str, access: Access) -> Any:
    return tritonclient.grpc.aio.InferenceServerClient(
        address, creds=credentials(access), channel_args=CHANNEL_OPTIONS
    )


def _model_config(client: Any, model: str, timeout_s: float, headers: Headers) -> Any:
    return client.get_model_config(
        model, as_json=True, client_timeout=timeout_s, headers=dict(headers)
    )


def _infer(
    client: Any, model: str, inputs: Sequence[Any], timeout_s: float, headers: Headers
) -> Any:
    return client.infer(
        model,
        inputs,
        parameters=TRUNCATING,
        client_timeout=timeout_s,
        headers=dict(headers),
    )


def _failure(error: Exception) -> Failure | None:
    """Return what an error means; grpcio says UNAVAILABLE itself where it has no connection."""
    if isinstance(error, InferenceServerException) and error.status() == UNAVAILABLE:
        message = error.message() or ""
        if any(words in message for words in HANDSHAKE_FAILURES):
            return UNTRUSTED
        for beginning, failure in TRANSPORT_FAILURES.items():
            if message.startswith(beginning):
                return failure
    return failure_of(error, STATUSES, KINDS)


GRPC = Protocol(
    name="grpc",
    default_port=8001,
    tensor=tritonclient.grpc.InferInput,
    connect=_connect,
    connect_async=_connect_async,
    model_config=_model_config,
    config_of=lambda response: dict(response["config"]),
    infer=_infer,
    limit=nullcontext,
    limit_async=nullcontext,
    failure=_failure,
)
