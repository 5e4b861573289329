"""Requests that wait for the model, bounded in texts and in time.

The queue is the backend's own. Triton's `max_queue_size` counts requests, however many texts each
has, and any queue policy switches off the preparation of the next batch: requests that arrive
while the model is busy may then wait until another arrives, though the model has become free (seen
with Triton 2.51).
"""

from __future__ import annotations

import math
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
    characters: int
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

    def offer(self, request: R, texts: int, characters: int = 0) -> bool:
        """Put a request at the end; return whether there was room for it.

        Args:
            request: what `take` returns.
            texts: how many it has.
            characters: of all of them.
        """
        with self._changed:
            if self._waiting and self.texts + texts > self.max_texts:
                return False
            self._waiting.append(Waiting(request, texts, characters, self.clock()))
            self.texts += texts
            self._changed.notify()
            return True

    def take(
        self, max_texts: int, max_characters: Callable[[], float] = lambda: math.inf
    ) -> list[Waiting[R]]:
        """Wait for requests; return the first.

        At least one is returned, however large it is; none once the queue is closed and empty.

        Args:
            max_texts: of all that are returned.
            max_characters: returns, when they are there, how many characters they may have.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            taken: list[Waiting[R]] = []
            texts, characters = float(max_texts), max_characters()
            while self._waiting and (not taken or self._fits(texts, characters)):
                taken.append(self._pop())
                texts -= taken[-1].texts
                characters -= taken[-1].characters
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

    def _fits(self, texts: float, characters: float) -> bool:
        first = self._waiting[0]
        return first.texts <= texts and first.characters <= characters

    def _pop(self) -> Waiting[R]:
        first = self._waiting.popleft()
        self.texts -= first.texts
        return first
