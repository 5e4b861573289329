"""Batches: requests wait in a bounded queue, are merged, and run in buckets of similar length."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.problems.problem import Outputs, ProblemType
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch, Encode, Example, Tokenize
from bertender.text.batching import length_buckets
from bertender.text.tokenizer import LONGEST_INPUT_BY_DEFAULT
from serve.backend.running import (
    AdaptiveThreads,
    BucketRunner,
    OneByOne,
    OwnShapes,
    without_padding,
)

if TYPE_CHECKING:
    from bertender.models.predictor import Predictor

# --- from serve.request_queue
# Requests that wait for the model, bounded in texts and in time.
#
# The queue is the backend's own. Triton's `max_queue_size` counts requests, however many texts
# each
# has, and any queue policy switches off the preparation of the next batch: requests that arrive
# while the model is busy may then wait until another arrives, though the model has become free
# (seen
# with Triton 2.51).

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


# --- from serve.run_time
# How long batches take, by what earlier ones took, so that none is longer than callers wait.

WEIGHT = 0.2
"""Of the last batch in the average."""


class RunTime:
    """A running average of the seconds of a character.

    Texts are not tokenised yet when a batch is put together; their characters are known. The time
    of a batch that does not depend on its texts is in the average too, so that small batches allow
    fewer characters than there is time for.
    """

    def __init__(self) -> None:
        self.seconds_per_character = 0.0

    def measured(self, characters: int, seconds: float) -> None:
        """Learn from a batch."""
        if characters:
            change = seconds / characters - self.seconds_per_character
            self.seconds_per_character += change * (WEIGHT if self.seconds_per_character else 1.0)

    def characters_within(self, seconds: float) -> float:
        """Return how many characters are expected to take so long; no bound before any batch."""
        return seconds / self.seconds_per_character if self.seconds_per_character else math.inf


# --- from serve.bucketing
# Texts of mixed lengths to logits without paying for padding.
#
# A merged batch is tokenised at once, ordered by length and cut into buckets; each bucket runs
# padded to its own longest text, and where that is faster to the next of few shapes. The outputs
# come
# back in the order of the texts.


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
    problem: ProblemType[Any] = SINGLE_LABEL
    """The problem type of the model, a row of PROBLEMS."""
    runner: BucketRunner = field(default_factory=OneByOne)
    """Runs the buckets of a batch."""
    shapes: OwnShapes = field(default_factory=OwnShapes)
    """The shapes that buckets are padded to."""

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

        def outputs_of(bucket: list[int]) -> Sequence[Outputs]:
            narrowed = _narrowed(batch, bucket)
            logits = self.predictor.logits(self.shapes.padded(narrowed))
            return self.problem.outputs(without_padding(logits, narrowed), narrowed)

        by_row = dict[int, Outputs]()
        for bucket, outputs in zip(buckets, self.runner.run(outputs_of, buckets), strict=True):
            by_row.update(zip(bucket, outputs, strict=True))
        return [by_row[row] for row in rows]


def longest_input_of(encode: Encode) -> int:
    """Return the most tokens of an example that an encoding step lets through."""
    return encode.max_length if isinstance(encode, Tokenize) else LONGEST_INPUT_BY_DEFAULT


def _narrowed(batch: Batch, rows: list[int]) -> Batch:
    """Return some rows of a batch, without the columns that are padding to all of them."""
    used = batch.arrays["attention_mask"][rows].any(axis=0)
    return Batch(
        tuple(batch.examples[row] for row in rows),
        {name: array[rows][:, used] for name, array in batch.arrays.items()},
        None if batch.words is None else batch.words[rows][:, used],
    )


# --- from serve.merged_batch
# Predictions for the requests of a merged batch, each of which may fail on its own.

logger = logging.getLogger(__name__)

BoolArray = npt.NDArray[np.bool_]
Labels = npt.NDArray[np.object_]
Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Reading:
    """What a request asks for."""

    examples: tuple[Example, ...]
    truncate: bool = False
    """Texts that are longer than the model's input are cut; else the request is refused."""

    def characters(self, most: int) -> int:
        """Return the characters of all examples, of each at most so many."""
        return sum(min(most, sum(map(len, example))) for example in self.examples)


@dataclass(frozen=True)
class Refusal:
    """An error as the response to a request."""

    code: str
    """An attribute of Triton's TritonError."""
    reason: str


@dataclass(frozen=True)
class Predictions:
    """Predictions for the examples of a request, in their order."""

    tensors: Tensors
    """Of the response, by name."""
    truncated: BoolArray
    """(batch,)"""


def predictions(
    classifier: BucketedClassifier, readings: Sequence[Reading], labels: Labels
) -> list[Predictions | Refusal]:
    """Return the predictions for each request, or why it has none.

    All of them run together. Where that fails, or an output is not finite, each runs alone, so
    that only the requests at fault get an error.

    Args:
        classifier: the model.
        readings: the requests.
        labels: their names, as bytes.
    """
    if not readings:
        return []
    try:
        return _together(classifier, readings, labels)
    except Exception as error:  # whatever it is, the endpoint goes on
        if len(readings) == 1:
            _log(error)
            return [Refusal("INTERNAL", f"the model failed: {type(error).__name__}: {error}")]
    return [own for reading in readings for own in predictions(classifier, [reading], labels)]


def _together(
    classifier: BucketedClassifier, readings: Sequence[Reading], labels: Labels
) -> list[Predictions | Refusal]:
    batch = classifier.encode([each for reading in readings for each in reading.examples])
    parts = _parts(batch, [len(reading.examples) for reading in readings])
    refusals = [
        None if reading.truncate else _too_long(part)
        for reading, part in zip(readings, parts, strict=True)
    ]
    accepted = [part for part, refusal in zip(parts, refusals, strict=True) if not refusal]
    results = iter(_classified(classifier, batch, accepted, labels))
    return [refusal or next(results) for refusal in refusals]


def _classified(
    classifier: BucketedClassifier, batch: Batch, parts: Sequence[_Part], labels: Labels
) -> list[Predictions]:
    """Return the predictions for some parts of a batch; their scores are computed together."""
    if not parts:
        return []
    rows = [row for part in parts for row in part.rows]
    outputs = classifier.run(batch, rows)
    _check_finite(outputs)
    examples = [batch.examples[row] for row in rows]
    endpoint = classifier.problem.endpoint
    tensors = endpoint.arrays(outputs, examples, labels)
    ends = np.cumsum([len(part.rows) for part in parts]).tolist()
    places = [slice(end - len(part.rows), end) for part, end in zip(parts, ends, strict=True)]
    return [
        Predictions(endpoint.of_request(tensors, place, examples[place]), part.truncated)
        for part, place in zip(parts, places, strict=True)
    ]


@dataclass(frozen=True)
class _Part:
    """The rows of a request in a merged batch."""

    rows: range
    truncated: BoolArray
    """(rows,)"""
    tokens: npt.NDArray[np.int64]
    """(rows,): how many the model reads of each text"""


def _parts(batch: Batch, sizes: Sequence[int]) -> list[_Part]:
    ends = np.cumsum(sizes).tolist()
    nothing = np.zeros(len(batch), dtype=np.bool_)
    truncated = nothing if batch.truncated is None else batch.truncated
    tokens = batch.arrays["attention_mask"].sum(axis=1)
    return [
        _Part(range(end - size, end), truncated[end - size : end], tokens[end - size : end])
        for size, end in zip(sizes, ends, strict=True)
    ]


def _check_finite(outputs: Sequence[Outputs]) -> None:
    if not all(np.isfinite(each.logits).all() for each in outputs):
        raise ModelError("its logits are not finite. Check the artifact: bertender verify")


def _too_long(part: _Part) -> Refusal | None:
    if not part.truncated.any():
        return None
    row = int(part.truncated.argmax())
    return Refusal(
        "INVALID_ARG",
        f"row {row} has more than {part.tokens[row]} tokens, which is the model's longest input. "
        "Split the text, or send the parameter truncate=true to have it cut.",
    )


def _log(error: Exception) -> None:
    """Log where an error comes from, without its message: that may quote a text."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    logger.error("a run of the model failed: %s at %s", type(error).__name__, places)


# --- from serve.warm_up
# Runs of a model before its first request.
#
# A runtime reserves memory and prepares itself when it first sees an input of some size. Here
# that
# happens at the start, at sizes over all buckets, and not while a request waits.

SHORTEST = 8
LIMIT_S = 1.0
"""A slow model gains the least of this, and would take the longest."""


def warm_up(
    classifier: BucketedClassifier,
    text_columns: int,
    most_texts: int,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Classify one text, then run a full bucket of each length while that takes under a second.

    Where small buckets have a thread of their own, the largest of these comes first.

    Where buckets have few shapes, the others follow in what is left of the second.
    Where several buckets run at once, so many of them do: each reserves memory of its own.

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
    example = problem.endpoint.to_example(texts)
    classifier.outputs([example])
    edge = problem.edge_examples([example], classifier.longest_input)
    long = classifier.encode([edge[1]])
    longest = long.arrays["attention_mask"].shape[1]
    for rows, length in _shapes(classifier, longest, most_texts):
        if clock() - start > LIMIT_S:
            logger.info("no time for %d texts of %d tokens, and what follows", rows, length)
            return
        try:
            full = [_cut(long, rows, length)] * classifier.runner.at_once
            classifier.runner.run(classifier.predictor.logits, full)
        except Exception as error:  # its exception classes share no public base
            raise ModelError(
                f"the model fails at {rows} texts of {length} tokens, though its tokenizer allows "
                f"{longest}: {error}. Set a shorter --max-length, or export it again."
            ) from None


def _shapes(
    classifier: BucketedClassifier, longest: int, most_texts: int
) -> Iterator[tuple[int, int]]:
    """Yield full buckets, which take the most memory, and then what else buckets are padded to."""
    if isinstance(adaptive := classifier.predictor, AdaptiveThreads):
        yield 1, min(adaptive.tokens_for_all - 1, longest)
    yield from bucket_shapes(classifier.tokens_per_bucket, longest, most_texts)
    yield from classifier.shapes.every(classifier.tokens_per_bucket, most_texts)


def bucket_shapes(
    tokens_per_bucket: int, longest: int, most_texts: int
) -> Iterator[tuple[int, int]]:
    """Yield texts and tokens of a full bucket, at lengths that double up to the longest.

    Longer inputs than a bucket holds run alone; they take the most memory, and may never come.
    """
    length, longest = SHORTEST, min(longest, tokens_per_bucket)
    while length < longest:
        yield _texts(tokens_per_bucket, length, most_texts), length
        length *= 2
    yield _texts(tokens_per_bucket, longest, most_texts), longest


def _texts(tokens_per_bucket: int, length: int, most_texts: int) -> int:
    return max(1, min(most_texts, tokens_per_bucket // length))


def _cut(batch: Batch, rows: int, length: int) -> Batch:
    """Return the first tokens of a batch's one example, so many times."""
    arrays = {
        name: np.repeat(array[:, :length], rows, axis=0) for name, array in batch.arrays.items()
    }
    return Batch(batch.examples * rows, arrays)
