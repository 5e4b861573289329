"""The queue of the backend: requests wait in it, bounded and in turns, and leave it in buckets.

Callers take turns in tokens: the one of whom the fewest have run comes first (the virtual token
counter of Sheng et al. 2024, https://arxiv.org/abs/2401.00588, equation 1 without weights). A
bucket is put together from the rows of all waiting requests whenever the model is free, so that a
request which has just arrived shares the next one, and leaves as soon as its own rows are done.
What shape it has then is in `OwnShapes` and `PaddedShapes`.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.problems.problem import Outputs
from bertender.text.batch import Batch, Example, length_buckets
from serve.wire import WATCH_CALLER

Tensors = Mapping[str, npt.NDArray[Any]]
"""Arrays of a response, by the name of the output."""


PADDED_TOKENS = 8
"""Padded buckets have a multiple of it."""
AXES_OF_EXAMPLES = 2
"""Axes of logits (batch, labels); logits of tokens have one more."""

HANGS_S = 60.0
"""A bucket that runs for longer hangs. Nothing starts beside it, so that a probe, whose short text
could still run, finds out."""


@dataclass(frozen=True)
class Refusal:
    """An error as the response to a request."""

    code: str
    """A key of `metrics.REASONS`, or UNAVAILABLE."""
    reason: str


@dataclass(eq=False)
class Request:
    """Examples to classify, and where the response goes."""

    examples: tuple[Example, ...]
    respond: Callable[[Tensors | Refusal], None]
    texts: Sequence[Example] = ()
    """Of each example, as they were sent."""
    truncate: bool = False
    """Texts that are longer than the model's input are cut; else the request is refused."""
    caller: str = ""
    """Whose turn it takes."""
    number: int = 0
    """By which it can be abandoned; 0 where it cannot."""
    wait_s: float | None = None
    """Longest wait; None for that of the queue."""
    is_cancelled: Callable[[], bool] = lambda: False
    """Returns whether its client has gone."""
    since: float = 0.0
    """When it came into the queue, in seconds of the queue's clock."""
    batch: Batch | None = None
    """The examples as tokens; rows can run from then on."""
    lengths: Sequence[int] = ()
    """Tokens of each row, of which an example may have several."""
    waiting: list[int] = field(default_factory=list)
    """Token rows that have not been taken, the longest first; before they are known, one each
    example."""
    outputs: dict[int, Outputs] = field(default_factory=dict)
    """Of the rows that are done."""
    is_over: bool = False
    """It has its response, or needs none."""

    @property
    def rows(self) -> int:
        return len(self.lengths) or len(self.examples)

    @property
    def has_begun(self) -> bool:
        return len(self.waiting) < self.rows


@dataclass(eq=False)
class Caller:
    """Requests of one caller that have rows in the queue, in the order in which they came."""

    served: float
    """Tokens that have run for it, and those by which others were ahead when it came."""
    turn: int = 0
    """Number of the bucket in which it last had a row."""
    requests: deque[Request] = field(default_factory=deque)

    def rows(self, shorter_than: int | None) -> Iterator[tuple[Request, int]]:
        for request in self.requests:
            for row in reversed(request.waiting) if request.batch is not None else ():
                if shorter_than is not None and request.lengths[row] >= shorter_than:
                    break  # those that follow are longer
                yield request, row


Row = tuple[Request, int]
"""A row that runs: a request, and the number of the row in it."""
Bucket = list[Row]
"""Rows that run together."""


class FairQueue:
    """Requests that wait for the model, bounded in texts and in time, and taken in turns.

    An example of several token rows counts as so many texts.

    The queue is the backend's own. Triton's `max_queue_size` counts requests, however many texts
    each has, knows no callers, and any queue policy switches off the preparation of the next batch.
    Several threads may use it.

    Args:
        max_texts: most texts that wait. A request that has more may wait alone.
        timeout_s: longest wait; 0 for no limit.
        max_batch_size: most texts that a bucket is chosen from.
        tokens_per_bucket: most tokens of a bucket, padding included.
        small_tokens: buckets of fewer tokens may run beside a text that is longer than a bucket.
            Beside others they would not: they share the next one, which takes less computation.
        shapes: what buckets are padded to.
        clock: returns seconds.
    """

    def __init__(
        self,
        max_texts: int,
        timeout_s: float = 0.0,
        *,
        max_batch_size: int = 64,
        tokens_per_bucket: int = 256,
        small_tokens: int = 0,
        shapes: OwnShapes | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_texts = max_texts
        self.timeout_s = timeout_s
        self.max_batch_size = max_batch_size
        self.tokens_per_bucket = tokens_per_bucket
        self.small_tokens = small_tokens
        self.shapes = shapes or OwnShapes()
        self.clock = clock
        self.texts = 0
        self._callers: dict[str, Caller] = {}
        self._turns = count(1)
        # tokens that have run for a caller on average: the virtual time of fair queueing. A new
        # caller starts there, or callers with a text each would keep one with several waiting
        self._progress = 0.0
        self._long = 0  # buckets that run now and are a text longer than a bucket
        self._running: dict[int, float] = {}  # bucket that runs now, by its id -> its start
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, request: Request) -> list[Request]:
        """Put a request into the queue; return those that have no room in it, this or others.

        Where the queue is full, the caller who has the most texts in it loses its newest requests
        that have not begun: one that fills the queue leaves room to others.
        """
        texts = len(request.examples)
        with self._changed:
            refused: list[Request] = []
            is_full = self.texts and self.texts + texts > self.max_texts
            if is_full and request.caller != WATCH_CALLER:
                refused = self._in_the_way(request)
                if request in refused:
                    return refused
                for each in refused:
                    self._remove(each)
            request.since = self.clock()
            request.waiting = list(range(texts))
            self.texts += texts
            if (caller := self._callers.get(request.caller)) is None:
                served = min((each.served for each in self._callers.values()), default=0.0)
                caller = Caller(max(served, self._progress))
                self._callers[request.caller] = caller
            caller.requests.append(request)
            return refused

    def tokenised(self, request: Request, batch: Batch) -> None:
        """Let the rows of a request be taken."""
        lengths = batch.arrays["attention_mask"].sum(axis=1).tolist()
        with self._changed:
            if request.is_over:
                return
            self.texts += len(lengths) - len(request.waiting)
            request.lengths = lengths
            request.waiting = sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True)
            request.batch = batch
            self._changed.notify_all()

    def take(self, *, small: bool = False) -> tuple[Bucket, list[Request]] | None:
        """Wait for rows that can run; return those of one bucket, and the requests that begin.

        It has rows of the caller whose turn it is, and rows of similar length of all others.
        Nothing is returned once the queue is closed and empty.

        Args:
            small: wait until a long text runs, and return only what is small beside it.
        """
        with self._changed:
            while not (bucket := self._next_bucket(small)):
                if self._closed and not self.texts:
                    return None
                self._changed.wait()
            turn = next(self._turns)
            begun = [each for each in dict.fromkeys(r for r, _ in bucket) if not each.has_begun]
            tokens = sum(request.lengths[row] for request, row in bucket)
            self._progress += tokens / len(self._callers)
            for request, row in bucket:
                request.waiting.remove(row)
                caller = self._callers[request.caller]
                caller.served += request.lengths[row]
                caller.turn = turn
                if not request.waiting:
                    self._forget(request)
            self.texts -= len(bucket)
            self._long += self._is_long(bucket)
            self._running[id(bucket)] = self.clock()
            self._changed.notify_all()  # what is small may run beside it
            return bucket, begun

    def done(self, bucket: Bucket, outputs: Mapping[Row, Outputs]) -> list[Request]:
        """Give the rows of a bucket their outputs; return the requests that are complete by it.

        Args:
            bucket: what `take` returned.
            outputs: of its rows, but for those of requests that were dropped meanwhile.
        """
        complete: list[Request] = []
        with self._changed:
            for (request, row), own in outputs.items():
                request.outputs[row] = own
                if len(request.outputs) == request.rows and not request.is_over:
                    request.is_over = True
                    complete.append(request)
            self._long -= self._is_long(bucket)
            del self._running[id(bucket)]
            self._changed.notify_all()
        return complete

    def drop(self, request: Request) -> bool:
        """Take a request out, whose remaining rows need not run; False where it is over already."""
        with self._changed:
            if request.is_over:
                return False
            self._remove(request)
            return True

    def numbered(self, number: int) -> Request | None:
        """Return the request of that number, if rows of it still wait."""
        with self._changed:
            requests = (each for caller in self._callers.values() for each in caller.requests)
            return next((each for each in requests if each.number == number), None)

    def expired(self) -> list[Request]:
        """Remove and return the requests that have waited for too long and have not begun."""
        with self._changed:
            now = self.clock()
            late = [
                request
                for caller in self._callers.values()
                for request in caller.requests
                if not request.has_begun and now - request.since > self.longest_wait(request)
            ]
            for request in late:
                self._remove(request)
            return late

    def longest_wait(self, request: Request) -> float:
        """Return how many seconds a request may wait: its own wish, and no longer than others."""
        limits = (each for each in (self.timeout_s, request.wait_s) if each)
        return min(limits, default=math.inf)

    def close(self) -> None:
        """Let `take` return nothing once those that wait are taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_bucket(self, small: bool) -> Bucket:
        """Return the bucket of the first row in turn, among as many rows as make a batch."""
        now = self.clock()
        hangs = any(now - since > HANGS_S for since in self._running.values())
        if hangs or (small and not self._long):
            return []
        shorter_than = self.small_tokens if small else None
        callers = sorted(self._callers.values(), key=lambda each: (each.served, each.turn))
        rows = list(islice(_in_turns([c.rows(shorter_than) for c in callers]), self.max_batch_size))
        if len(rows) < 2:
            return rows
        lengths = [self.shapes.tokens(request.lengths[row]) for request, row in rows]
        budget = self.small_tokens - 1 if small else self.tokens_per_bucket
        buckets = length_buckets(lengths, budget, rows=self.shapes.rows)
        return [rows[place] for place in next(each for each in buckets if 0 in each)]

    def _is_long(self, bucket: Bucket) -> bool:
        longest = max(request.lengths[row] for request, row in bucket)
        return longest > self.tokens_per_bucket

    def _in_the_way(self, request: Request) -> list[Request]:
        """Return what a full queue does without: the request itself, or the newest of a greedier
        caller, as many as make room."""
        texts = {
            name: sum(len(each.waiting) for each in caller.requests)
            for name, caller in self._callers.items()
        }
        greediest = max(texts, key=texts.__getitem__)
        own = texts.get(request.caller, 0) + len(request.examples)
        excess = self.texts + len(request.examples) - self.max_texts
        refused: list[Request] = []
        if greediest != request.caller:
            for each in reversed(self._callers[greediest].requests):
                if excess <= 0 or own >= texts[greediest]:
                    break
                if not each.has_begun:
                    refused.append(each)
                    excess -= len(each.waiting)
                    texts[greediest] -= len(each.waiting)
        return [request] if excess > 0 else refused

    def _remove(self, request: Request) -> None:
        request.is_over = True
        if request.waiting:
            self.texts -= len(request.waiting)
            request.waiting = []
            self._forget(request)
            self._changed.notify_all()  # a closed queue may be empty by it

    def _forget(self, request: Request) -> None:
        """Take a request without waiting rows, and a caller without requests, off the list."""
        caller = self._callers[request.caller]
        caller.requests.remove(request)
        if not caller.requests:
            del self._callers[request.caller]


def _in_turns(
    iterators: Sequence[Iterator[tuple[Request, int]]],
) -> Iterator[tuple[Request, int]]:
    """Yield one of each iterator after another until all are empty."""
    left = list(iterators)
    while left:
        for iterator in list(left):
            try:
                yield next(iterator)
            except StopIteration:
                left.remove(iterator)


@dataclass(frozen=True)
class OwnShapes:
    """Every bucket has the shape of its texts."""

    def rows(self, texts: int) -> int:
        """Return the rows of a bucket of at least one text."""
        return texts

    def tokens(self, longest: int) -> int:
        """Return the tokens of each row, by those of the longest text."""
        return longest

    def padded(self, bucket: Batch) -> Batch:
        """Return a bucket in its shape."""
        return bucket

    def without_padding(
        self, logits: npt.NDArray[np.float32], bucket: Batch
    ) -> npt.NDArray[np.float32]:
        """Return the logits of a bucket, of each example or of each token, by its own shape."""
        rows, tokens = bucket.arrays["attention_mask"].shape
        return logits[:rows] if logits.ndim == AXES_OF_EXAMPLES else logits[:rows, :tokens]

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield rows and tokens of shapes that are worth a run before the first request."""
        yield from ()


@dataclass(frozen=True)
class PaddedShapes(OwnShapes):
    """Buckets are padded to 1, 2, 3, 4, 6, 8, 12, 16, ... rows, and to multiples of 8 tokens.

    A server merges requests, so nearly every bucket has another number of texts and tokens than
    those before it. Where a runtime compiles a graph for each shape when it first comes, that takes
    longer than padding to a shape that has come already.
    """

    longest_input: int
    """Most tokens that the model reads."""

    def rows(self, texts: int) -> int:
        power = 1 << (texts - 1).bit_length()
        return power * 3 // 4 if texts <= power * 3 // 4 else power

    def tokens(self, longest: int) -> int:
        return max(longest, min(-(-longest // PADDED_TOKENS) * PADDED_TOKENS, self.longest_input))

    def padded(self, bucket: Batch) -> Batch:
        """Return a bucket with rows and columns of zeros added, which the mask hides."""
        rows, tokens = bucket.arrays["attention_mask"].shape
        added = ((0, self.rows(rows) - rows), (0, self.tokens(tokens) - tokens))
        arrays = {name: np.pad(array, added) for name, array in bucket.arrays.items()}
        return Batch(bucket.examples, arrays)

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield all that a bucket can have, with few rows first: most requests have few texts."""
        longest = min(self.longest_input, tokens_per_bucket)
        lengths = dict.fromkeys(
            self.tokens(least) for least in range(1, longest + 1, PADDED_TOKENS)
        )
        rows = dict.fromkeys(map(self.rows, takewhile(lambda each: each <= most_texts, count(1))))
        for each in rows:
            yield from ((each, length) for length in lengths if each * length <= tokens_per_bucket)
