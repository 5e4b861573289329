"""A served model of any predictor: requests that meet in its queue, and their responses."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import numpy as np

from bertender.models.runtimes import Predictor
from bertender.text.batch import Batch, Example
from serve.backend.batches import BucketedClassifier, ServedModel
from serve.backend.fair_queue import FairQueue, Refusal, Request, Tensors

Response = Tensors | Refusal


@contextmanager
def serving(
    classifier: BucketedClassifier, labels: Sequence[str], lanes: int = 1, **settings: Any
) -> Iterator[ServedModel]:
    """Serve a model; the settings are those of its queue."""
    queue = FairQueue(**{"max_texts": 1000, "shapes": classifier.shapes, **settings})
    names = np.array([label.encode() for label in labels], np.object_)
    model = ServedModel(classifier, names, queue, lanes=lanes)
    yield model
    model.close()


def submit(model: ServedModel, examples: Sequence[Example], **settings: Any) -> Future[Response]:
    """Send a request; the settings are those of `Request`."""
    future = Future[Response]()
    texts = [model.classifier.problem.to_texts(example) for example in examples]
    model.submit(Request(tuple(examples), future.set_result, texts, **settings))
    return future


def ask(model: ServedModel, *requests: Sequence[Example], **settings: Any) -> list[Response]:
    """Send requests one right after the other; return the responses."""
    futures = [submit(model, examples, **settings) for examples in requests]
    return [future.result(10) for future in futures]


def logits_of(model: ServedModel, examples: Sequence[Example]) -> Any:
    """Return the logits of examples, (batch, labels), asked for at once."""
    (response,) = ask(model, examples, truncate=True)
    assert not isinstance(response, Refusal), response
    return response["LOGITS"]


class Busy:
    """A predictor that waits in its first run until it is released; what is sent meanwhile meets
    in the queue."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.entered, self.release = threading.Event(), threading.Event()

    def logits(self, batch: Batch) -> Any:
        self.entered.set()
        assert self.release.wait(10)
        return self.predictor.logits(batch)


@contextmanager
def meeting(model: ServedModel, example: Example) -> Iterator[None]:
    """Keep a model of one lane busy, so that what is sent in the block meets in its queue."""
    predictor = model.classifier.predictor
    model.classifier.predictor = busy = Busy(predictor)
    first = submit(model, [example])
    assert busy.entered.wait(10)
    model.classifier.predictor = predictor
    try:
        yield
    finally:
        busy.release.set()
        first.result(10)
