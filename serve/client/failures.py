"""What may go wrong with a request: the error that it becomes, and whether another try is safe."""

from __future__ import annotations

from dataclasses import dataclass

from bertender.core.errors import DeadlineError, OverloadedError, ServingError, UnreachableError

__all__ = ["ABSENT", "BROKEN", "LATE", "OVERLOADED", "REFUSED", "Failure"]


@dataclass(frozen=True)
class Failure:
    """A kind of failure."""

    error: type[ServingError]
    message: str
    """With `{url}` and `{reason}`."""
    retry: bool = False
    """Another try is safe: the request was not accepted, so that it costs the server nothing."""

    def explained(self, url: str, reason: object) -> ServingError:
        """Return the error, which has the next step."""
        return self.error(self.message.format(url=url, reason=reason))


NOBODY = (
    "no endpoint responds at {url} ({reason}). Start one with `bertender serve ARTIFACT`, or give "
    "the address of a running one with --url."
)

OVERLOADED = Failure(
    OverloadedError,
    "the server at {url} rejects requests for now: {reason}. It has more work than it takes on: "
    "send fewer requests at once, or send this one again later.",
    retry=True,
)
ABSENT = Failure(UnreachableError, NOBODY, retry=True)
"""Nothing listens, or it closed the connection before the first byte of a response."""
BROKEN = Failure(UnreachableError, NOBODY)
"""What listens is no endpoint, or its response broke off."""
LATE = Failure(
    DeadlineError,
    "no endpoint responds at {url} in time ({reason}). Allow it longer with timeout_s "
    "(--timeout-s), or send fewer texts in a request.",
)
REFUSED = Failure(ServingError, "the server at {url} refused: {reason}")
