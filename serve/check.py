"""Checks with the real server, which is started for them, of a model or of a written repository."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from bertender.core.artifact import Artifact, Label
from bertender.core.config import Record
from bertender.core.errors import RuntimeMissingError, ServerMissingError, ServingError
from bertender.models.classifier import Classifier, open_classifier
from bertender.models.runtimes import check_installed
from bertender.problems.problem import Outputs
from bertender.text.batch import Example, rows_of
from serve.backend.fair_queue import FairQueue, Request
from serve.client.endpoint import Classification, Endpoint
from serve.config import SERVED_RUNTIMES, EndpointConfig, ServeCommandConfig, ServeConfig
from serve.server.installation import find_installation
from serve.server.server import Server, serving

LARGEST_DIFFERENCE = 1e-3
"""Allowed difference of a logit, with one text per request: the endpoint runs the same file, so
only the order of sums may differ."""


class Served(Record):
    """A text and the endpoint's prediction."""

    text: tuple[str, ...]
    answer: Classification
    true_label: Label | dict[str, Label] = Field(
        None, description="that of the data, where it is known"
    )


class EndpointCheck(Record):
    """Predictions of the endpoint, and their distance from the local model's."""

    served: tuple[Served, ...]
    max_abs_difference: float


def check_endpoint(
    artifact: Artifact,
    examples: Sequence[Example],
    config: EndpointConfig,
    true_labels: Sequence[Label | dict[str, Label]] | None = None,
) -> EndpointCheck:
    """Serve an artifact on free loopback ports, classify some texts through it, and stop it.

    Args:
        artifact: the ONNX classifier to serve.
        examples: examples to draw the texts from.
        config: number and seed of the texts.
        true_labels: true labels of the examples, to show next to the predictions.

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
    """Return the largest difference of a logit; raise ServingError if a prediction is wrong."""
    pairs = [served_outputs(local, row.text, [row.answer]) for row in served]
    difference = largest_difference(pairs)
    if not difference <= LARGEST_DIFFERENCE:  # refuses NaN too
        raise ServingError(
            f"the endpoint's logits differ from the local model's by {difference:g}, allowed "
            f"{LARGEST_DIFFERENCE:g}. Check that both run the same onnxruntime: bertender doctor."
        )
    return difference


def served_outputs(
    local: Classifier, example: Example, answers: Sequence[Classification]
) -> tuple[Outputs, Outputs]:
    """Return the outputs for an example from an endpoint's answers, and from the same file here.

    Args:
        local: the served file as a classifier; answers do not describe their logits.
        example: the example sent.
        answers: one answer, or one for each text of the example sent separately.

    Raises:
        ServingError: a label does not match its own logits.
    """
    problem, own = local.problem, _in_buckets(local, example)
    logits = [answer.logits for answer in answers]
    found = problem.logits_at(own.places, logits if len(logits) > 1 else logits[0])
    served = Outputs(found.astype(np.float32), own.places)
    name = problem.by_names(problem.decode(served, example), local.labels)
    if answers[0].label != name:
        raise ServingError(
            f"the endpoint predicts {answers[0].label!r} for {example!r}, and its own logits are "
            f"of {name!r}. Write the artifact again, then serve that."
        )
    return served, own


def _in_buckets(local: Classifier, example: Example) -> Outputs:
    """Return the outputs for an example, its rows run together as by an idle endpoint: dynamic
    8-bit models have one scale for all rows of a run."""
    queue, batch = FairQueue(max_texts=1), local.encode([example])
    request = Request(batch.examples, respond=lambda response: None)
    queue.offer(request)
    queue.tokenised(request, batch)
    queue.close()
    while taken := queue.take():
        bucket, _ = taken
        together = rows_of(batch, [row for _, row in bucket])
        outputs = local.problem.row_outputs(local.predictor.logits(together), together)
        queue.done(bucket, dict(zip(bucket, outputs, strict=True)))
    return local.problem.joined([request.outputs[row] for row in range(request.rows)])


def largest_difference(pairs: Sequence[tuple[Outputs, Outputs]]) -> float:
    """Return the largest difference of a logit; NaN if any is NaN."""
    return float(np.max([np.abs(served.logits - own.logits).max() for served, own in pairs]))


def try_repository(repository: Path, config: ServeCommandConfig) -> str | None:
    """Start a server with a written repository on free loopback ports, classify a text with each
    model, and stop it.

    Args:
        repository: repository of `write_repository`.
        config: settings of the repository.

    Returns:
        The reason why it could not be tested on this machine; None if it was.

    Raises:
        ServingError: the server does not start with the repository, or a model refuses the text.
    """
    runtime = SERVED_RUNTIMES[config.runtime]
    try:
        installation = find_installation()
        if runtime.in_process:
            check_installed(runtime.in_process)
    except (ServerMissingError, RuntimeMissingError) as error:
        return str(error)
    if runtime.triton_backend and not installation.has_backend(runtime.triton_backend):
        return (
            f"the server of this machine has no backend {runtime.triton_backend!r} in "
            f"{installation.backends}."
        )
    settings = config.changed({"repository_only": None, "http_port": 0, "metrics_port": 0})
    try:
        with Server(repository, settings) as server:
            for model in server.models:
                with Endpoint(server.http_url, model=model) as endpoint:
                    endpoint.classify([("a",) * endpoint.text_columns])
    except ServingError as error:
        raise ServingError(
            f"{repository} is written, and does not serve on this machine: {error}"
        ) from error
    finally:  # the stub's Python leaves compiled files next to model.py
        for compiled in repository.glob("*/*/__pycache__"):
            shutil.rmtree(compiled, ignore_errors=True)
    return None
