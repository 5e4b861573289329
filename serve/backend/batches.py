"""Batches: requests are tokenised on arrival, and run in buckets of similar length.

`ServedModel.submit` puts a request into the queue and tokenises it. Lanes, a thread each, take
buckets from the queue (`FairQueue.take`), run them, and respond to requests that are complete.
`BucketedClassifier.run` runs one bucket, padded to its longest text, or to one of few shapes where
that is faster. `opening` opens its predictor.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError, ModelError
from bertender.problems.problem import Outputs, Problem
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Batch, Encode, Tokenize, cut_examples, merged
from bertender.text.tokenizer import LONGEST_INPUT_BY_DEFAULT, Padding, padding_of
from serve.backend.fair_queue import Bucket, FairQueue, OwnShapes, Refusal, Request, Row, Tensors
from serve.backend.metrics import QUEUE_FULL, QUEUE_TIMEOUT, REASONS, Tally
from serve.wire import ABSTAINED, TEXT, TOKENS, TRUNCATED, BytesArray, Wishes, from_arrays

if TYPE_CHECKING:  # at run time, this would load PyTorch into the server
    from bertender.models.runtimes import Predictor

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.object_]

CHARACTERS_AT_ONCE = 2 * 1024
"""Most characters of a request to tokenise in the thread that accepts it, where all others wait.
They take a fifth of a millisecond, but words that are made for it take ten."""
CHARACTERS_OF_FEW = 64 * 1024
"""Most characters of a request that does not wait for larger ones to be tokenised. The largest may
take ten seconds."""
LOOK_FOR_CANCELLATION_S = 0.005
"""Least wait in seconds before asking whether the client has gone, since asking Triton costs a
message to its process and back."""

CANCELLED = Refusal("CANCELLED", "the client has gone")


class ServedModel:
    """A model that classifies the texts of requests, ordered by turns and lengths.

    Args:
        classifier: the model.
        labels: names of the labels, as bytes.
        queue: queue of requests.
        input_names: input names of the texts of an example.
        max_text_bytes: longest text.
        lanes: number of buckets that run concurrently.
        copies: number of copies of the model, each in a process, that count together.
        abstain_below: probability below which the model abstains.
    """

    def __init__(
        self,
        classifier: BucketedClassifier,
        labels: Labels,
        queue: FairQueue,
        input_names: Sequence[str] = (TEXT,),
        max_text_bytes: int | None = None,
        lanes: int = 1,
        *,
        copies: int = 1,
        abstain_below: float | None = None,
    ) -> None:
        self.classifier = classifier
        self.labels = labels
        self.label_names = tuple(label.decode() for label in labels)
        self.abstain_below = abstain_below
        self.queue = queue
        self.input_names = input_names
        self.max_text_bytes = max_text_bytes
        self.tally = classifier.tally = Tally()
        self.reader, self.large_reader = Reader(self._tokenise), Reader(self._tokenise)
        self.large_lanes = lanes
        self.copies = copies
        kinds = [False] * lanes + [True] * bool(queue.small_tokens)
        self.lanes = [
            threading.Thread(target=run_or_exit, args=(self._work, small), name="lane", daemon=True)
            for small in kinds
        ]
        for lane in self.lanes:
            lane.start()

    def ask(
        self,
        inputs: Sequence[BytesArray],
        wishes: Wishes,
        respond: Callable[[Tensors | Refusal], None],
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """Accept or refuse a request of raw texts; `respond` is called in any case.

        Args:
            inputs: an array of UTF-8 bytes for each of `input_names` (see `to_arrays`).
            wishes: parameters of the request.
            respond: called with the tensors, or a refusal; in any thread.
            is_cancelled: returns whether the client has gone.
        """
        request = Request((), respond, is_cancelled=is_cancelled)
        if wishes.abandon:
            self.abandon(wishes.abandon)
            run_or_exit(respond, CANCELLED)  # the client has gone; metrics do not count it
            return
        try:
            texts = from_arrays(inputs, self.max_text_bytes, self.classifier.problem.takes_list)
            request.texts = texts
            request.examples = tuple(map(self.classifier.problem.to_example, texts))
        except DataError as error:
            self.refuse(request, Refusal("INVALID_ARG", str(error)))
            return
        except Exception as error:  # an error of one request must not affect others
            self.refuse(request, Refusal("INTERNAL", f"the request cannot be read: {error}"))
            return
        request.truncate, request.caller = wishes.truncate, wishes.caller
        request.number, request.counted = wishes.number, wishes.counted
        request.wait_s = None if wishes.wait_ms is None else wishes.wait_ms / 1000
        self.submit(request)

    def submit(self, request: Request) -> None:
        """Accept or refuse a request; it gets a response in any case."""
        self._refuse_late()  # makes room
        refused = self.queue.offer(request)
        for each in refused:
            reason = (
                f"the queue is full: {self.queue.max_texts} texts wait at most. Send it again "
                "later."
            )
            self.refuse(each, Refusal("UNAVAILABLE", reason), QUEUE_FULL)
        if request not in refused:
            characters = sum(sum(map(len, example)) for example in request.examples)
            if characters > CHARACTERS_AT_ONCE:
                reader = self.reader if characters <= CHARACTERS_OF_FEW else self.large_reader
                reader.submit(request)
            else:
                self._tokenise(request)

    def abandon(self, number: int) -> None:
        """Drop a request whose client has gone."""
        request = self.queue.numbered(number)
        if request is not None and self.queue.drop(request):
            self.refuse(request, CANCELLED)

    def close(self) -> None:
        """Respond to waiting requests, and stop."""
        self.reader.close()
        self.large_reader.close()
        self.queue.close()
        for lane in self.lanes:
            lane.join()

    def _tokenise(self, request: Request) -> None:
        """Tokenise a request, so that its rows can run."""
        if request.is_over:  # it waited too long to be tokenised
            return
        try:
            batch = self.classifier.encode(request.examples)
            refusal = None if request.truncate else _too_long(batch)
            refusal = refusal or _too_many(batch, self.queue.max_texts)
        except Exception as error:  # of one request; the others must not notice
            refusal = _failure(error)
        if refusal is None:
            self.queue.tokenised(request, batch)
        elif self.queue.drop(request):
            self.refuse(request, refusal)

    def _work(self, small: bool) -> None:
        """Run bucket after bucket."""
        while taken := self.queue.take(small=small):
            bucket, begun = taken
            started = time.perf_counter()
            for request in begun:
                self._begin(request)
            wanted = [(request, row) for request, row in bucket if not request.is_over]
            complete = self.queue.done(bucket, self._run(wanted))
            self._complete(complete)
            if wanted:
                # lanes and copies share wall time: small buckets count with the large one that runs
                # meanwhile
                share = 0.0 if small else 1 / (self.large_lanes * self.copies)
                self.tally.batch(len(wanted), share * (time.perf_counter() - started))
            self._refuse_late()

    def _begin(self, request: Request) -> None:
        """Count the wait of a request, and drop it where its client has gone."""
        waited_s = self.queue.clock() - request.since
        self.tally.wait(waited_s)
        if (
            not request.number  # numbered requests are abandoned by number
            and waited_s >= LOOK_FOR_CANCELLATION_S
            and request.is_cancelled()
            and self.queue.drop(request)
        ):
            self.refuse(request, CANCELLED)

    def _run(self, rows: Bucket) -> dict[Row, Outputs]:
        """Run rows together and return their outputs.

        If that fails, or an output is not finite, the rows of each request run separately, so that
        only faulty requests get an error. Their rows have no outputs.
        """
        if not rows:
            return {}
        try:
            tokenised = [(request.batch, row) for request, row in rows if request.batch is not None]
            outputs = self.classifier.run(merged(tokenised, self.classifier.padding))
            if not all(np.isfinite(each.logits).all() for each in outputs):
                raise ModelError("its logits are not finite. Check the artifact: bertender verify")
            return dict(zip(rows, outputs, strict=True))
        except Exception as error:  # the endpoint must go on after any error
            first, *others = dict.fromkeys(request for request, _ in rows)
            if not others:
                if self.queue.drop(first):
                    self.refuse(first, _failure(error))
                return {}
        found: dict[Row, Outputs] = {}
        for each in (first, *others):
            found |= self._run([row for row in rows if row[0] is each])
        return found

    def _complete(self, requests: Sequence[Request]) -> None:
        """Respond to requests whose rows have run; if that fails, to each separately."""
        try:
            responses = self._responses(requests)
        except Exception as error:  # as above
            if len(requests) == 1:
                self.refuse(requests[0], _failure(error))
                return
            for each in requests:
                self._complete([each])
            return
        for request, tensors in zip(requests, responses, strict=True):
            request.respond(tensors)

    def _responses(self, requests: Sequence[Request]) -> list[Tensors]:
        """Return the response to each request, with labels and scores computed for all at once."""
        batches = [each.batch for each in requests if each.batch is not None]
        examples = [example for batch in batches for example in batch.examples]
        if not examples:
            return []
        problem = self.classifier.problem
        outputs = [
            problem.joined(own)
            for request, batch in zip(requests, batches, strict=True)
            for own in batch.by_example([request.outputs[row] for row in range(request.rows)])
        ]
        texts = [text for each in requests for text in each.texts]
        tensors = problem.response(outputs, examples, self.labels, texts)
        abstained = self._abstained(outputs, batches)
        responses: list[Tensors] = []
        start = 0
        for request, batch in zip(requests, batches, strict=True):
            own = slice(start, start + len(batch))
            start = own.stop
            more: dict[str, npt.NDArray[Any]] = {}
            if request.truncate:
                more[TRUNCATED] = cut_examples(batch)[:, None]
            if request.counted:
                more[TOKENS] = np.array(_example_tokens(batch), np.int32)[:, None]
            if abstained is not None:
                more[ABSTAINED] = abstained[own, None]
            responses.append({**problem.response_of(tensors, own, examples[own]), **more})
        return responses

    def _abstained(
        self, outputs: Sequence[Outputs], batches: Sequence[Batch]
    ) -> npt.NDArray[np.bool_] | None:
        """Return on which examples the model abstains (examples,), and count probabilities and
        tokens in the metrics; None where responses have no ABSTAINED."""
        tokens = [each for batch in batches for each in _example_tokens(batch)]
        if not self.classifier.problem.has_confidence:
            self.tally.texts(tokens)
            return None
        confidence = self.classifier.problem.confidence(outputs, self.label_names)
        if self.abstain_below is None:
            self.tally.texts(tokens, confidence)
            return None
        # compared in 32 bits, like a client would compare SCORE
        abstained = confidence.astype(np.float32) < np.float32(self.abstain_below)
        self.tally.texts(tokens, confidence, int(abstained.sum()))
        return np.asarray(abstained)

    def _refuse_late(self) -> None:
        for late in self.queue.expired():
            waited_s = self.queue.clock() - late.since
            self.tally.wait(waited_s)
            limit_s = self.queue.longest_wait(late)
            waited = f"the request has waited for over {limit_s * 1000:g} ms in the queue"
            if late.wait_s == limit_s:
                reason = f"{waited}, which is its own timeout."
                self.refuse(late, Refusal("LATE", reason))
            else:
                refusal = Refusal("UNAVAILABLE", f"{waited}. Send it again later.")
                self.refuse(late, refusal, QUEUE_TIMEOUT)

    def refuse(self, request: Request, refusal: Refusal, reason: str | None = None) -> None:
        """Respond to a request with an error; `reason` is for the metrics."""
        self.tally.rejection(reason or REASONS[refusal.code])
        run_or_exit(request.respond, refusal)


class Reader:
    """A thread that tokenises requests, one of each caller in turn.

    Args:
        tokenise: tokenises a request.
    """

    def __init__(self, tokenise: Callable[[Request], None]) -> None:
        self.tokenise = tokenise
        self._waiting: dict[str, deque[Request]] = {}
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(
            target=run_or_exit, args=(self._work,), name="reader", daemon=True
        )
        self._thread.start()

    def submit(self, request: Request) -> None:
        with self._changed:
            self._waiting.setdefault(request.caller, deque()).append(request)
            self._changed.notify()

    def close(self) -> None:
        """Return once all requests are tokenised."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while (request := self._next()) is not None:
            self.tokenise(request)

    def _next(self) -> Request | None:
        with self._changed:
            while not self._waiting:
                if self._is_closed:
                    return None
                self._changed.wait()
            caller = next(iter(self._waiting))
            own = self._waiting.pop(caller)
            request = own.popleft()
            if own:
                self._waiting[caller] = own  # behind the others
            return request


def run_or_exit(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function; an error ends the process, since a client would otherwise wait for ever. The
    supervisor reports the end."""
    try:
        function(*arguments)
    except BaseException:
        with suppress(OSError):  # the disk of the log is full
            traceback.print_exc()
        os._exit(1)


def _failure(error: Exception) -> Refusal:
    """Return the refusal of a failed request, and log where the error was raised, without its
    message, which may quote a text."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    logger.error("a run of the model failed: %s at %s", type(error).__name__, places)
    return Refusal("INTERNAL", f"the model failed: {type(error).__name__}: {error}")


def _example_tokens(batch: Batch) -> list[int]:
    return [sum(own) for own in batch.by_example(_row_tokens(batch))]


def _row_tokens(batch: Batch) -> list[int]:
    tokens: list[int] = batch.arrays["attention_mask"].sum(axis=1).tolist()
    return tokens


def _too_long(batch: Batch) -> Refusal | None:
    cut = cut_examples(batch)
    if not cut.any():
        return None
    row = int(cut.argmax())
    return Refusal(
        "INVALID_ARG",
        f"row {row} has more than {batch.lengths()[row]} tokens, which is the "
        "model's longest input. Split the text, or send the parameter truncate=true to have it "
        "cut.",
    )


def _too_many(batch: Batch, most: int) -> Refusal | None:
    """Refuse a text with more windows than texts may wait, which would block other requests."""
    row = int(np.argmax(batch.counts))
    if batch.counts[row] <= max(most, 1):
        return None
    return Refusal(
        "INVALID_ARG",
        f"row {row} is read in {batch.counts[row]} parts, and {most} are allowed. Send it as "
        "several shorter ones.",
    )


@dataclass
class BucketedClassifier:
    """A predictor with its encoding step and its bucket shapes."""

    encode: Encode
    """Examples to token arrays (batch, seq) with an `attention_mask`."""
    predictor: Predictor
    """Token arrays to logits (batch, labels)."""
    problem: Problem[Any] = SINGLE_LABEL
    """The problem type of the model."""
    shapes: OwnShapes = field(default_factory=OwnShapes)
    """Shapes to which buckets are padded."""
    tally: Tally | None = None
    """Counts the runs of the predictor."""

    @property
    def longest_input(self) -> int:
        """Longest input of the model in tokens."""
        return longest_input_of(self.encode)

    @property
    def padding(self) -> Padding:
        """Padding of rows that are shorter than others in their bucket."""
        return padding_of(self.encode.tokenizer) if isinstance(self.encode, Tokenize) else Padding()

    def run(self, bucket: Batch) -> list[Outputs]:
        """Return the outputs of each row of a bucket."""
        padded = self.shapes.padded(bucket)
        started = time.perf_counter()
        logits = self.predictor.logits(padded)
        if self.tally is not None:
            self.tally.run(padded.arrays["attention_mask"], time.perf_counter() - started)
        return self.problem.row_outputs(self.shapes.without_padding(logits, bucket), bucket)


def longest_input_of(encode: Encode) -> int:
    """Return the longest input of an encoding step in tokens."""
    return encode.max_length if isinstance(encode, Tokenize) else LONGEST_INPUT_BY_DEFAULT
