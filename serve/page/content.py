"""What the page shows: the model with its lineage, and the predictions for a text."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.lineage import lineage
from bertender.text.example import Example
from serve.client import Classification, Endpoint

__all__ = ["About", "Ancestor", "Prediction", "Score", "Shown", "about", "classify"]


class Ancestor(Record):
    """An artifact of the lineage."""

    name: str = Field(description="of its folder, or why it cannot be read")
    stage: str = ""
    precision: str = ""
    parameters: int | None = None
    model_mb: float | None = Field(None, description="of the weights or the graph, in 10^6 bytes")
    digest: str = Field("", description="its first digits")


class About(Record):
    """The served model."""

    task: str
    labels: tuple[str, ...]
    text_columns: tuple[str, ...]
    lineage: tuple[Ancestor, ...] = Field(description="the served artifact first")


class Score(Record):
    """A label's probability."""

    label: str
    probability: float
    predicted: bool


class Prediction(Record):
    """The scores of a text, or of one of its words; the most probable first."""

    word: str | None
    scores: tuple[Score, ...]


class Shown(Record):
    """The predictions for a text, or a pair, as they are shown."""

    latency_ms: float = Field(description="of the request, on a connection that is open")
    predictions: tuple[Prediction, ...]


def about(artifact: Artifact) -> About:
    """Describe an artifact and what it was made from."""
    task = artifact.card.task
    return About(
        task=task.name,
        labels=task.labels,
        text_columns=task.text_columns,
        lineage=tuple(_ancestor(each) for each in lineage(artifact)),
    )


def _ancestor(each: Artifact | str) -> Ancestor:
    if isinstance(each, str):
        return Ancestor(name=each)
    card = each.card
    return Ancestor(
        name=_name(each),
        stage=card.stage,
        precision=card.precision,
        parameters=card.findings.parameters,
        model_mb=_model_bytes(each) / 1e6,
        digest=each.digest[:12],
    )


def _name(artifact: Artifact) -> str:
    """Return the name of an artifact; of a deployed one, which lies in a version of a model."""
    if artifact.name == "artifact" and artifact.path.parent.name.isdecimal():
        return f"{artifact.path.parent.parent.name}, version {artifact.path.parent.name}"
    return artifact.name


def _model_bytes(artifact: Artifact) -> int:
    suffixes = (".onnx", ".onnx.data", ".safetensors")
    files = artifact.card.files.items()
    return sum(record.size_bytes for name, record in files if name.endswith(suffixes))


def classify(endpoint: Endpoint, labels: Sequence[str], texts: Sequence[str]) -> Shown:
    """Ask an endpoint about a text, or a pair.

    Raises:
        DataError: the model cannot read it.
        ServingError: the endpoint refuses it, or went away.
    """
    example = endpoint.model.examples([tuple(texts)])[0]
    started = time.perf_counter()
    [classification] = endpoint.classify([example])
    latency_ms = 1000 * (time.perf_counter() - started)
    probabilities = endpoint.problem.endpoint.probabilities(_rows(classification))
    predicted = _predicted(classification)
    predictions = (
        _prediction(word, chosen, labels, row)
        for word, chosen, row in zip(
            _words(classification, example), predicted, probabilities, strict=True
        )
    )
    return Shown(latency_ms=latency_ms, predictions=tuple(predictions))


def _is_of_words(classification: Classification) -> bool:
    return np.ndim(classification.logits) > 1


def _rows(classification: Classification) -> npt.NDArray[np.float32]:
    """Return the logits, (1, labels), or (words, labels) where words have labels."""
    return np.atleast_2d(np.asarray(classification.logits, dtype=np.float32))


def _words(classification: Classification, example: Example) -> Iterator[str | None]:
    yield from example if _is_of_words(classification) else [None]


def _predicted(classification: Classification) -> list[frozenset[str]]:
    """Return the predicted labels of each row."""
    label = classification.label
    if isinstance(label, str):
        return [frozenset([label])]
    if _is_of_words(classification):
        return [frozenset([each]) for each in label]
    return [frozenset(label)]


def _prediction(
    word: str | None,
    predicted: frozenset[str],
    labels: Sequence[str],
    probabilities: npt.NDArray[np.float32],
) -> Prediction:
    scores = [
        Score(label=label, probability=float(each), predicted=label in predicted)
        for label, each in zip(labels, probabilities, strict=True)
    ]
    ordered = sorted(scores, key=lambda each: each.probability, reverse=True)
    return Prediction(word=word, scores=tuple(ordered))
