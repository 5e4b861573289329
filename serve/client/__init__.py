"""Client of an endpoint: texts in, predictions out, over HTTP or gRPC."""

from serve.client.access import DEFAULT_URL, AccessConfig
from serve.client.endpoint import (
    DEFAULT_CONCURRENCY,
    AsyncEndpoint,
    Classification,
    Endpoint,
    ServedPredictor,
    classify,
)
from serve.client.protocols import DEFAULT_TIMEOUT_S, OPENING_RETRIES, PROTOCOLS, Protocol

__all__ = [
    "DEFAULT_CONCURRENCY",
    "DEFAULT_TIMEOUT_S",
    "DEFAULT_URL",
    "OPENING_RETRIES",
    "PROTOCOLS",
    "AccessConfig",
    "AsyncEndpoint",
    "Classification",
    "Endpoint",
    "Protocol",
    "ServedPredictor",
    "classify",
]
