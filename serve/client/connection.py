"""Connection: what endpoints with and without asyncio have in common."""

from __future__ import annotations

from typing import Any

from serve.client.address import parse_url
from serve.client.retries import Tries

__all__ = ["Connection"]


class Connection:
    """A client of one server, what its requests may take, and what its errors mean."""

    def __init__(self, url: str, timeout_s: float, retries: int | None) -> None:
        self.url = url
        self.timeout_s = timeout_s
        self.retries = retries
        self.protocol, self.address = parse_url(url)
        self.client: Any = None

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
