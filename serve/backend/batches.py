"""Batches: requests are tokenised as they come, and run in buckets of similar length.

From top to bottom: `ServedModel.submit` takes a request into the queue and tokenises it. Lanes, a
thread each, take bucket after bucket from the queue, each put together by `FairQueue.take`, run it,
and respond to the requests that are complete by it. `BucketedClassifier.run` runs one bucket,
padded to its own longest text alone, and where that is faster to the next of few shapes. Its
predictor is opened by `opening`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from serve.wire import ABSTAINED, TEXT, TRUNCATED, BytesArray, Wishes, from_arrays

if TYPE_CHECKING:  # at run time it would load PyTorch into the server
    from bertender.models.runtimes import Predictor

logger = logging.getLogger(__name__)

Labels = npt.NDArray[np.object_]

CHARACTERS_AT_ONCE = 16 * 1024
"""Most characters of a request that are tokenised in the thread which takes it on. They take a
millisecond or two; more of them would keep others waiting."""
LOOK_FOR_CANCELLATION_S = 0.005
"""A shorter wait asks nothing: asking Triton costs a message to its process and back."""

CANCELLED = Refusal("CANCELLED", "the client has gone")


class ServedModel:
    """A model that classifies the texts of requests, in the order of turns and lengths.

    Args:
        classifier: the model.
        labels: their names, as bytes.
        queue: of requests.
        input_names: of the texts of an example.
        max_text_bytes: longest text.
        lanes: buckets that run at once.
        abstain_below: probability below which a response says that the model abstains.
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
        self.reader = ThreadPoolExecutor(1, thread_name_prefix="reader")
        self.large_lanes = lanes
        kinds = [False] * lanes + [True] * bool(queue.small_tokens)
        self.lanes = [
            threading.Thread(target=or_end, args=(self._work, small), name="lane", daemon=True)
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
        """Take texts on as they came, or refuse them; `respond` is called in any case.

        Args:
            inputs: an array of UTF-8 bytes for each of `input_names`, as `to_arrays` makes them.
            wishes: parameters of the request.
            respond: gets the tensors, or why there are none; in any thread.
            is_cancelled: returns whether the client has gone.
        """
        request = Request((), respond, is_cancelled=is_cancelled)
        if wishes.abandon:
            self.abandon(wishes.abandon)
            or_end(respond, CANCELLED)  # nobody reads it, and it is no request of the metrics
            return
        try:
            texts = from_arrays(inputs, self.max_text_bytes, self.classifier.problem.takes_list)
            request.texts = texts
            request.examples = tuple(map(self.classifier.problem.to_example, texts))
        except DataError as error:
            self.refuse(request, Refusal("INVALID_ARG", str(error)))
            return
        except Exception as error:  # of one request; the others must not notice
            self.refuse(request, Refusal("INTERNAL", f"the request cannot be read: {error}"))
            return
        request.truncate, request.caller = wishes.truncate, wishes.caller
        request.number = wishes.number
        request.wait_s = None if wishes.wait_ms is None else wishes.wait_ms / 1000
        self.submit(request)

    def submit(self, request: Request) -> None:
        """Take a request on, or refuse it; it gets its response in any case."""
        self._refuse_late()  # which makes room
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
                self.reader.submit(or_end, self._read, request)
            else:
                self._read(request)

    def abandon(self, number: int) -> None:
        """Run nothing more of a request, whose client has gone."""
        request = self.queue.numbered(number)
        if request is not None and self.queue.drop(request):
            self.refuse(request, CANCELLED)

    def close(self) -> None:
        """Respond to what still waits, and stop."""
        self.reader.shutdown()
        self.queue.close()
        for lane in self.lanes:
            lane.join()

    def _read(self, request: Request) -> None:
        """Tokenise a request, so that its rows can run."""
        if request.is_over:  # it waited for the reader for too long
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
                # lanes share a second; what runs beside a large bucket is in the second of that one
                share = 0.0 if small else 1 / self.large_lanes
                self.tally.batch(len(wanted), share * (time.perf_counter() - started))
            self._refuse_late()

    def _begin(self, request: Request) -> None:
        """Count the wait of a request, and drop it where its client has gone."""
        waited_s = self.queue.clock() - request.since
        self.tally.wait(waited_s)
        if (
            not request.number  # what has one is abandoned by it
            and waited_s >= LOOK_FOR_CANCELLATION_S
            and request.is_cancelled()
            and self.queue.drop(request)
        ):
            self.refuse(request, CANCELLED)

    def _run(self, rows: Bucket) -> dict[Row, Outputs]:
        """Return the outputs of rows that run together.

        Where that fails, or an output is not finite, the rows of each request run alone, so that
        only the requests at fault get an error. Their rows have no outputs.
        """
        if not rows:
            return {}
        try:
            tokenised = [(request.batch, row) for request, row in rows if request.batch is not None]
            outputs = self.classifier.run(merged(tokenised, self.classifier.padding))
            if not all(np.isfinite(each.logits).all() for each in outputs):
                raise ModelError("its logits are not finite. Check the artifact: bertender verify")
            return dict(zip(rows, outputs, strict=True))
        except Exception as error:  # whatever it is, the endpoint goes on
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
        """Respond to requests whose rows have run; where that fails, to each alone."""
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
        """Return the response to each request; labels and scores of all are computed at once."""
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
            more = {TRUNCATED: cut_examples(batch)[:, None]} if request.truncate else {}
            if abstained is not None:
                more[ABSTAINED] = abstained[own, None]
            responses.append({**problem.response_of(tensors, own, examples[own]), **more})
        return responses

    def _abstained(
        self, outputs: Sequence[Outputs], batches: Sequence[Batch]
    ) -> npt.NDArray[np.bool_] | None:
        """Return about which examples the model abstains (examples,), and count how sure it is of
        each, and their tokens; None where no response says so."""
        tokens = [sum(own) for batch in batches for own in batch.by_example(_row_tokens(batch))]
        if not self.classifier.problem.has_confidence:
            self.tally.texts(tokens)
            return None
        confidence = self.classifier.problem.confidence(outputs, self.label_names)
        if self.abstain_below is None:
            self.tally.texts(tokens, confidence)
            return None
        # as a client compares SCORE, which is of 32 bits
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
        """Respond to a request by an error; the reason is that of the metrics."""
        self.tally.rejection(reason or REASONS[refusal.code])
        or_end(request.respond, refusal)


def or_end(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function whose error would leave somebody waiting for ever: it ends the process, and
    the supervisor reports that."""
    try:
        function(*arguments)
    except BaseException:
        with suppress(OSError):  # the log's disk is full
            traceback.print_exc()
        os._exit(1)


def _failure(error: Exception) -> Refusal:
    """Return what a request gets by an error; log where that comes from, without its message,
    which may quote a text."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(frames))
    logger.error("a run of the model failed: %s at %s", type(error).__name__, places)
    return Refusal("INTERNAL", f"the model failed: {type(error).__name__}: {error}")


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
    """Refuse a text that is read in more parts than texts may wait: it would take others' turns."""
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
    """A predictor, and how examples become what it runs."""

    encode: Encode
    """Examples to token arrays (batch, seq) with an `attention_mask`."""
    predictor: Predictor
    """Token arrays to logits (batch, labels)."""
    problem: Problem[Any] = SINGLE_LABEL
    """The problem type of the model, a row of PROBLEMS."""
    shapes: OwnShapes = field(default_factory=OwnShapes)
    """The shapes that buckets are padded to."""
    tally: Tally | None = None
    """Counts the runs of the predictor."""

    @property
    def longest_input(self) -> int:
        """Most tokens of an example that the model reads."""
        return longest_input_of(self.encode)

    @property
    def padding(self) -> Padding:
        """What fills rows that are shorter than others of their bucket."""
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
    """Return the most tokens of an example that an encoding step lets through."""
    return encode.max_length if isinstance(encode, Tokenize) else LONGEST_INPUT_BY_DEFAULT
