"""Check of an endpoint: start the real server, ask it, compare with the local model, stop it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ServingError
from bertender.models.classifier import Classifier, open_classifier
from bertender.text.batch import Example
from serve.client.endpoint import Classification, Endpoint
from serve.config import EndpointConfig, ServeConfig
from serve.server.server import serving

LARGEST_DIFFERENCE = 1e-3
"""Of a logit, one text a request: the endpoint runs the same file, so only sums may reorder."""


class Served(Record):
    """One text and the endpoint's prediction."""

    text: tuple[str, ...]
    answer: Classification
    true_label: str | tuple[str, ...] | None = Field(
        None, description="that of the data, where it is known"
    )


class EndpointCheck(Record):
    """Predictions of the endpoint, and how far they are from the local model's."""

    served: tuple[Served, ...]
    max_abs_difference: float


def check_endpoint(
    artifact: Artifact,
    examples: Sequence[Example],
    config: EndpointConfig,
    true_labels: Sequence[str | tuple[str, ...]] | None = None,
) -> EndpointCheck:
    """Serve an artifact on free loopback ports, classify some texts through it, and stop it.

    Args:
        artifact: the ONNX classifier to serve.
        examples: what the texts are drawn from.
        config: how many, and which.
        true_labels: those of the examples, to stand next to the predictions.

    Raises:
        ServingError: the server does not start, or its predictions differ from the local model's.
    """
    draw = np.random.default_rng(config.seed)
    count = min(config.texts, len(examples))
    rows = draw.choice(len(examples), count, replace=False).tolist()
    local = open_classifier(artifact)
    ports = ServeConfig(http_port=0, metrics_port=0)
    with serving(artifact, ports) as server, Endpoint(server.http_url) as endpoint:
        served = tuple(
            Served(
                text=examples[row],
                answer=endpoint.classify([examples[row]])[0],
                true_label=true_labels and true_labels[row],
            )
            for row in rows
        )
    return EndpointCheck(served=served, max_abs_difference=_difference(local, served))


def _difference(local: Classifier, served: Sequence[Served]) -> float:
    """Return the largest difference of a logit; raise ServingError when a prediction is wrong."""
    problem = local.problem
    outputs = [local.outputs([row.text])[0] for row in served]
    logits = [  # (rows, labels), where the local model predicts as well
        np.atleast_2d(np.array(row.answer.logits))[own.places]
        for row, own in zip(served, outputs, strict=True)
    ]
    pairs = zip(logits, outputs, strict=True)
    difference = max(float(np.abs(mine - own.logits).max()) for mine, own in pairs)
    if not difference <= LARGEST_DIFFERENCE:  # so that NaN is refused too
        raise ServingError(
            f"the endpoint's logits differ from the local model's by {difference:g}, allowed "
            f"{LARGEST_DIFFERENCE:g}. Check that both run the same onnxruntime: bertender doctor."
        )
    for row, own, mine in zip(served, outputs, logits, strict=True):
        decoded = problem.decode(problem.choose(mine), own.places, row.text)
        name = problem.by_names(decoded, local.labels)
        if row.answer.label != name:
            raise ServingError(
                f"the endpoint predicts {row.answer.label!r} for {row.text!r}, and its own logits "
                f"are of {name!r}. Write the artifact again, then serve that."
            )
    return difference
