"""Predictions for the requests of a merged batch, each of which may fail on its own."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.problems import Outputs
from bertender.text.batch import Batch
from bertender.text.example import Example
from serve.bucketing import BucketedClassifier

__all__ = ["Predictions", "Reading", "Refusal", "predictions"]

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
