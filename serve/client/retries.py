"""Tries of one request: how long each may take, and how long to wait before the next."""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable

from bertender.core.errors import ServingError
from serve.client.failures import Failure

__all__ = ["FIRST_WAIT_S", "LONGEST_WAIT_S", "OPENING_RETRIES", "Tries", "on_opening"]

OPENING_RETRIES = 3
"""By default, when an endpoint is opened: where nothing listens at a url, it is likely wrong."""
FIRST_WAIT_S = 0.05
LONGEST_WAIT_S = 2.0


def on_opening(retries: int | None) -> int:
    """Return how often the first request is sent again, which asks for the model's description."""
    return OPENING_RETRIES if retries is None else retries


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
