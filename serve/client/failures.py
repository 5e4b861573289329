"""What may go wrong with a request: the error that it becomes, and whether another try is safe."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from bertender.core.errors import DeadlineError, OverloadedError, ServingError, UnreachableError

DEFAULT_TIMEOUT_S = 60.0
OPENING_RETRIES = 3
"""By default, when an endpoint is opened: where nothing listens at a url, it is likely wrong."""
FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0


@dataclass(frozen=True)
class Failure:
    """A kind of failure."""

    error: type[ServingError]
    message: str
    """With `{url}` and `{reason}`."""
    most_retries: float = 0
    """How many tries of one request may follow such failures, if the caller allows as many.

    Any number where the server did no work for the request; one where it may have begun.
    """

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
"""The connection was closed before the first byte of a response. It may have been unused for too
long, or the request may have ended the server, which must not meet it after each restart."""
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
        timeout_s: from now to the deadline.
        retries: how many tries may follow the first; by default, as many as fit in.
        clock: returns seconds.
        draw: returns a number from 0 to 1.
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
            ServingError: the error itself; no try is left, for any failure or for this kind, or
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
