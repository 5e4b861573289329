"""Batches: requests wait in a bounded queue, are merged, and run in buckets of similar length.

A batch is put together in three steps, from top to bottom here. `RequestQueue.take` chooses which
of the waiting requests are merged. `predictions` tokenises all of their texts at once, and gives
each request its own part of what the model says. `BucketedClassifier.run` orders the texts by
length and cuts them into buckets, each of which runs padded to its own longest text alone, and
where that is faster to the next of few shapes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.problems.problem import Outputs, Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch, Encode, Example, Tokenize, length_buckets
from bertender.text.tokenizer import LONGEST_INPUT_BY_DEFAULT
from serve.backend.metrics import Tally
from serve.backend.running import AdaptiveThreads, BucketRunner, OneByOne, OwnShapes
from serve.wire import TRUNCATED

if TYPE_CHECKING:  # at run time it would load PyTorch into the server
    from bertender.models.runtimes import Predictor

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.object_]
Tensors = Mapping[str, npt.NDArray[Any]]
"""Arrays of a response, by the name of the output."""


@dataclass
class Request:
    """Examples to classify, and where the response goes."""

    examples: tuple[Example, ...]
    truncate: bool = False
    """Texts that are longer than the model's input are cut; else the request is refused."""
    characters: int = 0
    """Characters of all examples, as far as the model reads them."""
    of_triton: Any = None
    sender: Any = None
    since: float = 0.0
    """When it came into the queue, in seconds of the queue's clock."""


@dataclass(frozen=True)
class Refusal:
    """An error as the response to a request."""

    code: str
    """An attribute of Triton's TritonError."""
    reason: str


WEIGHT = 0.2
"""Weight of the last batch in the average time of a character."""


class RequestQueue:
    """Requests that wait for the model, bounded in texts and in time: first come, first served.

    The queue is the backend's own. Triton's `max_queue_size` counts requests, however many texts
    each has, and any queue policy switches off the preparation of the next batch: requests that
    arrive while the model is busy may then wait until another arrives, though the model has become
    free (seen with Triton 2.51). Several threads may use it.

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
        self.seconds_per_character = 0.0
        """A running average; 0 before any batch."""
        self._waiting: deque[Request] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def offer(self, request: Request) -> bool:
        """Put a request at the end; return whether there was room for it."""
        texts = len(request.examples)
        with self._changed:
            if self._waiting and self.texts + texts > self.max_texts:
                return False
            request.since = self.clock()
            self._waiting.append(request)
            self.texts += texts
            self._changed.notify()
            return True

    def take(self, max_texts: int) -> list[Request]:
        """Wait for requests; return the first, as many as make a batch.

        They have at most so many texts, and take no longer than a request may wait, by the time
        that characters took before: otherwise a queue of requests that have waited for nearly as
        long as they may would run as one batch, and all of them would be late. At least one is
        returned, however large it is; none once the queue is closed and empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed)
            taken: list[Request] = []
            is_bounded = self.timeout_s and self.seconds_per_character
            characters = self.timeout_s / self.seconds_per_character if is_bounded else math.inf
            texts = max_texts
            while self._waiting:
                following = self._waiting[0]
                texts -= len(following.examples)
                characters -= following.characters
                if taken and (texts < 0 or characters < 0):
                    break
                taken.append(self._pop())
            return taken

    def expired(self) -> list[Request]:
        """Remove and return the requests that have waited for too long."""
        with self._changed:
            oldest = self.clock() - self.timeout_s
            late = []
            while self.timeout_s and self._waiting and self._waiting[0].since < oldest:
                late.append(self._pop())
            return late

    def measured(self, characters: int, seconds: float) -> None:
        """Learn from a batch how long characters take; texts are tokenised after they are taken.

        The time of a batch that does not depend on its texts is in the average too, so that small
        batches allow fewer characters than there is time for.
        """
        if characters:
            change = seconds / characters - self.seconds_per_character
            self.seconds_per_character += change * (WEIGHT if self.seconds_per_character else 1.0)

    def close(self) -> None:
        """Let `take` return nothing once those that wait are taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _pop(self) -> Request:
        request = self._waiting.popleft()
        self.texts -= len(request.examples)
        return request


def predictions(
    classifier: BucketedClassifier, requests: Sequence[Request], labels: Labels
) -> list[Tensors | Refusal]:
    """Return the response to each request, or why it has none.

    All of them run together. Where that fails, or an output is not finite, each runs alone, so
    that only the requests at fault get an error.

    Args:
        classifier: the model.
        requests: what was taken from the queue.
        labels: their names, as bytes.
    """
    if not requests:
        return []
    try:
        return _together(classifier, requests, labels)
    except Exception as error:  # whatever it is, the endpoint goes on
        if len(requests) == 1:
            # where it comes from, without its message: that may quote a text
            frames = traceback.extract_tb(error.__traceback__)[-3:]
            places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
            logger.error("a run of the model failed: %s at %s", type(error).__name__, places)
            return [Refusal("INTERNAL", f"the model failed: {type(error).__name__}: {error}")]
    return [own for request in requests for own in predictions(classifier, [request], labels)]


def _together(
    classifier: BucketedClassifier, requests: Sequence[Request], labels: Labels
) -> list[Tensors | Refusal]:
    batch = classifier.encode([each for request in requests for each in request.examples])
    cut = np.zeros(len(batch), dtype=np.bool_) if batch.truncated is None else batch.truncated
    ends = np.cumsum([len(request.examples) for request in requests]).tolist()
    parts = [slice(end - len(each.examples), end) for each, end in zip(requests, ends, strict=True)]
    refusals = [
        _too_long(batch, part, cut) if cut[part].any() and not request.truncate else None
        for request, part in zip(requests, parts, strict=True)
    ]
    accepted = [part for part, refusal in zip(parts, refusals, strict=True) if refusal is None]
    rows = [row for part in accepted for row in range(part.start, part.stop)]
    if not rows:
        return [refusal for refusal in refusals if refusal is not None]
    outputs = classifier.run(batch, rows)
    if not all(np.isfinite(each.logits).all() for each in outputs):
        raise ModelError("its logits are not finite. Check the artifact: bertender verify")
    examples = [batch.examples[row] for row in rows]
    problem = classifier.problem
    # labels and scores of all requests at once
    tensors = problem.response(outputs, examples, labels)
    responses: list[Tensors | Refusal] = []
    start = 0
    for request, part, refusal in zip(requests, parts, refusals, strict=True):
        if refusal is not None:
            responses.append(refusal)
            continue
        own = slice(start, start + len(request.examples))
        start = own.stop
        truncated = {TRUNCATED: cut[part][:, None]} if request.truncate else {}
        responses.append({**problem.response_of(tensors, own, examples[own]), **truncated})
    return responses


def _too_long(batch: Batch, part: slice, cut: npt.NDArray[np.bool_]) -> Refusal:
    row = int(cut[part].argmax())
    tokens = batch.arrays["attention_mask"][part][row].sum()
    return Refusal(
        "INVALID_ARG",
        f"row {row} has more than {tokens} tokens, which is the model's longest input. "
        "Split the text, or send the parameter truncate=true to have it cut.",
    )


@dataclass
class BucketedClassifier:
    """A predictor and its encoding step, run bucket by bucket."""

    encode: Encode
    """Examples to token arrays (batch, seq) with an `attention_mask`."""
    predictor: Predictor
    """Token arrays to logits (batch, labels)."""
    label_count: int
    tokens_per_bucket: int
    """Most tokens, padding included, in one run."""
    problem: Problem[Any] = SINGLE_LABEL
    """The problem type of the model, a row of PROBLEMS."""
    runner: BucketRunner = field(default_factory=OneByOne)
    """Runs the buckets of a batch."""
    shapes: OwnShapes = field(default_factory=OwnShapes)
    """The shapes that buckets are padded to."""
    tally: Tally | None = None
    """Counts the runs of the predictor."""

    @property
    def longest_input(self) -> int:
        """Most tokens of an example that the model reads."""
        return longest_input_of(self.encode)

    def logits(self, examples: Sequence[Example]) -> npt.NDArray[np.float32]:
        """Return the logits of any number of examples, below one another, in their order."""
        nothing = np.empty((0, self.label_count), dtype=np.float32)
        return np.concatenate([nothing, *(each.logits for each in self.outputs(examples))])

    def outputs(self, examples: Sequence[Example]) -> list[Outputs]:
        """Return the outputs of any number of examples, in their order."""
        return self.run(self.encode(examples), range(len(examples))) if examples else []

    def run(self, batch: Batch, rows: Sequence[int]) -> list[Outputs]:
        """Return the outputs of some rows of an encoded batch, in the order of `rows`."""
        lengths = batch.arrays["attention_mask"][list(rows)].sum(axis=1).tolist()
        padded = [self.shapes.tokens(length) for length in lengths]
        places = length_buckets(padded, self.tokens_per_bucket, rows=self.shapes.rows)
        buckets = [[rows[place] for place in bucket] for bucket in places]
        by_row = dict[int, Outputs]()
        results = self.runner.run(lambda bucket: self._run_bucket(batch, bucket), buckets)
        for bucket, outputs in zip(buckets, results, strict=True):
            by_row.update(zip(bucket, outputs, strict=True))
        return [by_row[row] for row in rows]

    def _run_bucket(self, batch: Batch, rows: list[int]) -> Sequence[Outputs]:
        used = batch.arrays["attention_mask"][rows].any(axis=0)  # without padding to all of them
        bucket = Batch(
            tuple(batch.examples[row] for row in rows),
            {name: array[rows][:, used] for name, array in batch.arrays.items()},
            None if batch.words is None else batch.words[rows][:, used],
        )
        padded = self.shapes.padded(bucket)
        started = time.perf_counter()
        logits = self.predictor.logits(padded)
        if self.tally is not None:
            self.tally.run(padded.arrays["attention_mask"], time.perf_counter() - started)
        return self.problem.outputs(self.shapes.without_padding(logits, bucket), bucket)


def longest_input_of(encode: Encode) -> int:
    """Return the most tokens of an example that an encoding step lets through."""
    return encode.max_length if isinstance(encode, Tokenize) else LONGEST_INPUT_BY_DEFAULT


SHORTEST = 8
WARM_UP_LIMIT_S = 1.0
"""Most seconds of the warm-up: a slow model gains the least from it, and would take the longest."""


def warm_up(
    classifier: BucketedClassifier,
    text_columns: int,
    most_texts: int,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Classify one text, then run a full bucket of each length while that takes under a second.

    A runtime reserves memory and prepares itself when it first sees an input of some size. Here
    that happens at the start, at sizes over all buckets, and not while a request waits. Where small
    buckets have a thread of their own, the largest of these comes first. Where buckets have few
    shapes, the others follow in what is left of the second. Where several buckets run at once, so
    many of them do: each reserves memory of its own.

    Args:
        classifier: the model.
        text_columns: texts of an example.
        most_texts: of a batch.
        clock: returns seconds.

    Raises:
        ModelError: the model fails at a length that its tokenizer allows.
    """
    start = clock()
    problem, texts = classifier.problem, ("warm up",) * text_columns
    example = problem.to_example(texts)
    classifier.outputs([example])
    edge = problem.edge_examples([example], classifier.longest_input)
    long = classifier.encode([edge[1]])
    longest = long.arrays["attention_mask"].shape[1]
    # full buckets, which take the most memory, and then what else buckets are padded to
    shapes = [
        *bucket_shapes(classifier.tokens_per_bucket, longest, most_texts),
        *classifier.shapes.every(classifier.tokens_per_bucket, most_texts),
    ]
    if isinstance(adaptive := classifier.predictor, AdaptiveThreads):
        shapes.insert(0, (1, min(adaptive.tokens_for_all - 1, longest)))
    for rows, length in shapes:
        if clock() - start > WARM_UP_LIMIT_S:
            logger.info("no time for %d texts of %d tokens, and what follows", rows, length)
            return
        cut = {
            name: np.repeat(array[:, :length], rows, axis=0) for name, array in long.arrays.items()
        }
        full = Batch(long.examples * rows, cut)
        try:
            classifier.runner.run(classifier.predictor.logits, [full] * classifier.runner.at_once)
        except Exception as error:  # its exception classes share no public base
            raise ModelError(
                f"the model fails at {rows} texts of {length} tokens, though its tokenizer allows "
                f"{longest}: {error}. Set a shorter --max-length, or export it again."
            ) from None


def bucket_shapes(
    tokens_per_bucket: int, longest: int, most_texts: int
) -> Iterator[tuple[int, int]]:
    """Yield texts and tokens of a full bucket, at lengths that double up to the longest.

    Longer inputs than a bucket holds run alone; they take the most memory, and may never come.
    """
    longest = min(longest, tokens_per_bucket)
    lengths = [SHORTEST]
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    for length in (*lengths[:-1], longest):
        yield max(1, min(most_texts, tokens_per_bucket // length)), length
