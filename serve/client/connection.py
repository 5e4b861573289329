"""Connection: what endpoints with and without asyncio have in common."""

from __future__ import annotations

from typing import Any, TypedDict

from serve.client.access import NO_ACCESS, AccessConfig, open_access
from serve.client.address import parse_url
from serve.client.retries import Tries
from serve.wire import MODEL_NAME

__all__ = ["DEFAULT_TIMEOUT_S", "Connection", "ConnectionSettings"]

DEFAULT_TIMEOUT_S = 60.0


class ConnectionSettings(TypedDict, total=False):
    """Settings of every connection, by name; `Endpoint` explains them."""

    model: str
    timeout_s: float
    retries: int | None
    access: AccessConfig


class Connection:
    """A client of one model of a server, what its requests may take, and what its errors mean."""

    def __init__(
        self,
        url: str,
        *,
        model: str = MODEL_NAME,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        retries: int | None = None,
        access: AccessConfig = NO_ACCESS,
    ) -> None:
        self.url = url
        self.model_name = model
        self.timeout_s = timeout_s
        self.retries = retries
        self.address = parse_url(url)
        self.protocol = self.address.protocol
        self.access = open_access(self.address, access)
        self.client: Any = None

    def ask_for_config(self, client: Any, timeout_s: float) -> Any:
        """Ask about the served model; an awaitable, where the client is one of asyncio."""
        return self.protocol.model_config(client, self.model_name, timeout_s, self.access.headers)

    def wait_after(self, error: Exception, tries: Tries) -> float:
        """Return how long to wait before the next try of a request.

        Raises:
            ServingError: there is none; the error has the next step.
            Exception: the error itself, where it is not one of the client.
        """
        failure = self.protocol.failure(error)
        if failure is None:
            raise error
        return tries.wait_after(failure, failure.explained(self.url, error))
