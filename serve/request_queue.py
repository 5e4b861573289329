"""Requests that wait for the model, bounded in texts and in time.

The queue is the backend's own. Triton's `max_queue_size` counts requests, however many texts each
has, and any queue policy switches off the preparation of the next batch: requests that arrive
while the model is busy may then wait until another arrives, though the model has become free (seen
with Triton 2.51).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["RequestQueue", "Waiting"]

R = TypeVar("R")


@dataclass(frozen=True)
class Waiting(Generic[R]):
    """A request in the queue."""

    request: R
    texts: int
    since: float


class RequestQueue(Generic[R]):
    """First come, first served; several threads may use it.

    Args:
        max_texts: most texts that wait. A request that has more may wait alone.
        timeout_s: longest wait; 0 for no limit.
        clock: returns seconds.
    """

    def __init__(
        self, max_texts: int, timeout_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.max_texts = max_texts
        self.timeout_s = timeout_s
        self.clock = clock
        self.texts = 0
        self._waiting: deque[Waiting[R]] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, request: R, texts: int) -> bool:
        """Put a request at the end; return whether there was room for it."""
        with self._changed:
            if self._waiting and self.texts + texts > self.max_texts:
                return False
            self._waiting.append(Waiting(request, texts, self.clock()))
            self.texts += texts
            self._changed.notify()
            return True

    def take(self, max_texts: int) -> list[Waiting[R]]:
        """Wait for requests; return the first, of at most `max_texts` texts together.

        At least one is returned, however many texts it has; none once the queue is closed and
        empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            taken: list[Waiting[R]] = []
            left = max_texts
            while self._waiting and (not taken or self._waiting[0].texts <= left):
                taken.append(self._pop())
                left -= taken[-1].texts
            return taken

    def expired(self) -> list[Waiting[R]]:
        """Remove and return the requests that have waited for too long."""
        with self._changed:
            oldest = self.clock() - self.timeout_s
            late = []
            while self.timeout_s and self._waiting and self._waiting[0].since < oldest:
                late.append(self._pop())
            return late

    def close(self) -> None:
        """Let `take` return nothing once those that wait are taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _pop(self) -> Waiting[R]:
        first = self._waiting.popleft()
        self.texts -= first.texts
        return first
