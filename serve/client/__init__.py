"""Client of an endpoint: texts in, predictions out, over HTTP or gRPC.

A file a protocol (`http.py`, `grpc.py`), and one each for `Endpoint` and `AsyncEndpoint`.
"""

from serve.client.access import AccessConfig
from serve.client.address import DEFAULT_URL, PROTOCOLS
from serve.client.async_endpoint import DEFAULT_CONCURRENCY, AsyncEndpoint
from serve.client.endpoint import DEFAULT_TIMEOUT_S, Endpoint, ServedPredictor, classify
from serve.client.protocol import Protocol
from serve.client.retries import OPENING_RETRIES
from serve.client.served_model import Classification

__all__ = [
    "DEFAULT_CONCURRENCY",
    "OPENING_RETRIES",
    "DEFAULT_TIMEOUT_S",
    "DEFAULT_URL",
    "PROTOCOLS",
    "AccessConfig",
    "AsyncEndpoint",
    "Classification",
    "Endpoint",
    "Protocol",
    "ServedPredictor",
    "classify",
]
