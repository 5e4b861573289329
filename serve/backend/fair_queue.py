"""The queue of the backend: bounded, fair between callers, and emptied in buckets.

Callers take turns by tokens: the caller with the fewest tokens run so far comes first (the virtual
token counter of Sheng et al. 2024, https://arxiv.org/abs/2401.00588, equation 1 without weights).
Whenever the model is free, a bucket is formed from the rows of all waiting requests, so that a new
request joins the next bucket, and is complete as soon as its own rows have run. `OwnShapes` and
`PaddedShapes` decide the shape of a bucket.
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
"""Arrays of a response, by output name."""


PADDED_TOKENS = 8
"""Token counts of padded buckets are multiples of this."""
AXES_OF_EXAMPLES = 2
"""Number of axes of logits (batch, labels); logits of tokens have one more."""

HANGS_S = 60.0
"""Seconds after which a running bucket counts as hanging. No bucket starts next to it, so that a
probe fails, although its short text could still run."""


@dataclass(frozen=True)
class Refusal:
    """An error as the response to a request."""

    code: str
    """A code of `metrics.REASONS`, or UNAVAILABLE."""
    reason: str


@dataclass(eq=False)
class Request:
    """A request: examples to classify, and its response."""

    examples: tuple[Example, ...]
    respond: Callable[[Tensors | Refusal], None]
    texts: Sequence[Example] = ()
    """Texts of each example, as sent."""
    truncate: bool = False
    """Whether too long texts are cut; else the request is refused."""
    counted: bool = False
    """Whether the response has the number of tokens."""
    caller: str = ""
    """Caller whose turns the request uses."""
    number: int = 0
    """Number by which the request can be abandoned; 0 if it cannot."""
    wait_s: float | None = None
    """Longest wait; None for the queue's."""
    is_cancelled: Callable[[], bool] = lambda: False
    """Returns whether the client has gone."""
    since: float = 0.0
    """Time of arrival, in seconds of the queue's clock."""
    batch: Batch | None = None
    """The tokenised examples; rows can run once it is set."""
    lengths: Sequence[int] = ()
    """Token count of each row; an example may have several rows."""
    waiting: list[int] = field(default_factory=list)
    """Rows that have not been taken, longest first; one per example before they are tokenised."""
    outputs: dict[int, Outputs] = field(default_factory=dict)
    """Outputs of finished rows."""
    is_over: bool = False
    """Whether the request has its response, or needs none."""

    @property
    def rows(self) -> int:
        return len(self.lengths) or len(self.examples)

    @property
    def has_begun(self) -> bool:
        return len(self.waiting) < self.rows


@dataclass(eq=False)
class Caller:
    """A caller's requests with rows in the queue, in order of arrival."""

    served: float
    """Tokens that have run for the caller, plus the lead of others at its arrival."""
    turn: int = 0
    """Number of the last bucket with a row of this caller."""
    requests: deque[Request] = field(default_factory=deque)

    def rows(self, shorter_than: int | None) -> Iterator[tuple[Request, int]]:
        for request in self.requests:
            for row in reversed(request.waiting) if request.batch is not None else ():
                if shorter_than is not None and request.lengths[row] >= shorter_than:
                    break  # the following rows are longer
                yield request, row


Row = tuple[Request, int]
"""A row to run: its request, and its number there."""
Bucket = list[Row]
"""Rows that run together."""


class FairQueue:
    """Requests that wait for the model, limited in texts and in time, with fair turns.

    An example of several token rows counts as so many texts. The queue is thread-safe.

    It replaces Triton's queue, whose `max_queue_size` counts requests instead of texts, which does
    not know callers, and whose queue policies all disable preparing the next batch.

    Args:
        max_texts: most waiting texts. A larger request may wait alone.
        timeout_s: longest wait; 0 for no limit.
        max_batch_size: most texts from which a bucket is chosen.
        tokens_per_bucket: most tokens of a bucket, with padding.
        small_tokens: buckets with fewer tokens may run next to a text that is longer than half a
            bucket, where no other of its length has room. They do not run next to ordinary
            buckets: sharing the next bucket costs less.
        shapes: shapes to which buckets are padded.
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
        # the mean tokens run per caller: the virtual time of fair queueing. A new caller starts
        # there, or else new callers with single texts would starve a caller with many
        self._progress = 0.0
        self._long = 0  # running buckets of a single text that is longer than half a bucket
        self._running: dict[int, float] = {}  # id of a running bucket -> its start
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, request: Request) -> list[Request]:
        """Put a request into the queue; return the requests that must leave, possibly this one.

        If the queue is full, the caller with the most texts loses its newest requests that have not
        begun, so that one caller cannot fill the queue.
        """
        texts = len(request.examples)
        with self._changed:
            refused: list[Request] = []
            is_full = self.texts and self.texts + texts > self.max_texts
            if is_full and request.caller != WATCH_CALLER:
                refused = self._requests_to_refuse(request)
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
        """Set the tokens of a request, whose rows can then be taken."""
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
        """Wait for rows; return a bucket, and the requests that begin with it.

        The bucket has rows of the caller whose turn it is, and rows of similar length of all
        others. None is returned once the queue is closed and empty.

        Args:
            small: wait until a long text runs, and return only small buckets.
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
            self._changed.notify_all()  # small buckets may run next to it
            return bucket, begun

    def done(self, bucket: Bucket, outputs: Mapping[Row, Outputs]) -> list[Request]:
        """Store the outputs of a bucket; return the requests that are now complete.

        Args:
            bucket: bucket of `take`.
            outputs: outputs of its rows, except rows of dropped requests.
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
        """Remove a request without running its remaining rows; False if it is already over."""
        with self._changed:
            if request.is_over:
                return False
            self._remove(request)
            return True

    def numbered(self, number: int) -> Request | None:
        """Return the request with a number, if it still has waiting rows."""
        with self._changed:
            requests = (each for caller in self._callers.values() for each in caller.requests)
            return next((each for each in requests if each.number == number), None)

    def expired(self) -> list[Request]:
        """Remove and return requests that have waited too long and have not begun."""
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
        """Return the longest wait of a request in seconds: its own limit, at most the queue's. The
        watch's has none: its wait shows that the model hangs."""
        if request.caller == WATCH_CALLER:
            return math.inf
        limits = (each for each in (self.timeout_s, request.wait_s) if each)
        return min(limits, default=math.inf)

    def close(self) -> None:
        """Close the queue: `take` returns None once all waiting rows are taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _next_bucket(self, small: bool) -> Bucket:
        """Return the bucket of the first row in turn, among the rows of a batch."""
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
        return 2 * longest > self.tokens_per_bucket

    def _requests_to_refuse(self, request: Request) -> list[Request]:
        """Return the requests that leave a full queue: this one, or enough of the newest requests
        of a caller with more texts."""
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
            self._changed.notify_all()  # a closed queue may now be empty

    def _forget(self, request: Request) -> None:
        """Remove a request without waiting rows, and a caller without requests."""
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
    """Bucket shapes without extra padding."""

    def rows(self, texts: int) -> int:
        """Return the rows of a bucket of at least one text."""
        return texts

    def tokens(self, longest: int) -> int:
        """Return the tokens per row, for the tokens of the longest text."""
        return longest

    def padded(self, bucket: Batch) -> Batch:
        """Return a bucket padded to its shape."""
        return bucket

    def without_padding(
        self, logits: npt.NDArray[np.float32], bucket: Batch
    ) -> npt.NDArray[np.float32]:
        """Return the logits of a bucket, per example or per token, without extra padding."""
        rows, tokens = bucket.arrays["attention_mask"].shape
        return logits[:rows] if logits.ndim == AXES_OF_EXAMPLES else logits[:rows, :tokens]

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield rows and tokens of shapes to warm up before the first request."""
        yield from ()


@dataclass(frozen=True)
class PaddedShapes(OwnShapes):
    """Buckets are padded to 1, 2, 3, 4, 6, 8, 12, 16, ... rows, and to multiples of 8 tokens.

    A server merges requests, so that nearly every bucket has a new number of texts and tokens. For
    a runtime that compiles a graph for each new shape, padding to a known shape is faster.
    """

    longest_input: int
    """Longest input of the model in tokens."""

    def rows(self, texts: int) -> int:
        power = 1 << (texts - 1).bit_length()
        return power * 3 // 4 if texts <= power * 3 // 4 else power

    def tokens(self, longest: int) -> int:
        return max(longest, min(-(-longest // PADDED_TOKENS) * PADDED_TOKENS, self.longest_input))

    def padded(self, bucket: Batch) -> Batch:
        """Return a bucket padded with rows and columns of zeros, which the mask hides."""
        rows, tokens = bucket.arrays["attention_mask"].shape
        added = ((0, self.rows(rows) - rows), (0, self.tokens(tokens) - tokens))
        arrays = {name: np.pad(array, added) for name, array in bucket.arrays.items()}
        return Batch(bucket.examples, arrays)

    def every(self, tokens_per_bucket: int, most_texts: int) -> Iterator[tuple[int, int]]:
        """Yield all shapes of buckets, fewest rows first, since most requests have few texts."""
        longest = min(self.longest_input, tokens_per_bucket)
        lengths = dict.fromkeys(
            self.tokens(least) for least in range(1, longest + 1, PADDED_TOKENS)
        )
        rows = dict.fromkeys(map(self.rows, takewhile(lambda each: each <= most_texts, count(1))))
        for each in rows:
            yield from ((each, length) for length in lengths if each * length <= tokens_per_bucket)
