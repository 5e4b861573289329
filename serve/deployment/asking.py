"""Asking a served model about golden texts, one text a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertender.core.errors import BertenderError, DeploymentError
from bertender.core.golden import GoldenText, GoldenTexts
from bertender.measure.golden_check import GoldenPrediction
from bertender.problems import ProblemType
from serve.client import Endpoint
from serve.config import ServeConfig
from serve.deployment.targets import Place

__all__ = ["ask_golden", "readable"]

NO_RETRY = 0
"""It would send the text again without a check of who listens by then."""


def readable(
    golden: GoldenTexts,
    problem: ProblemType[Any],
    limits: Mapping[str, str],
    longest: int | None = None,
) -> dict[int, GoldenText]:
    """Return the golden texts that a server with these limits reads as they were read before.

    Args:
        golden: of an artifact.
        problem: the artifact's problem type.
        limits: parameters of the backend; `max_length` cuts texts that were whole when they were
            stored, and those of over `max_text_bytes` are refused, each of a pair on its own.
        longest: tokens that the artifact reads of a text, where its card has them; a server that
            reads more may see more of those that fill them.

    Returns:
        Place of a text among all of them -> the text.

    Raises:
        DeploymentError: there is none.
    """
    most_tokens = int(limits.get("max_length") or 10**9)
    if "max_length" in limits and longest is not None and longest < most_tokens:
        most_tokens = longest - 1
    most_bytes = int(limits.get("max_text_bytes") or ServeConfig().max_text_bytes)
    texts = {
        row: text
        for row, text in enumerate(golden.texts)
        if text.tokens <= most_tokens and _largest_bytes(text, problem) <= most_bytes
    }
    if not texts:
        raise DeploymentError(
            f"no golden text is within the server's limits (max_length={limits.get('max_length')}, "
            f"max_text_bytes={most_bytes}), so that nothing would be compared. Serve with larger "
            "ones."
        )
    return texts


def ask_golden(
    place: Place, texts: Mapping[int, GoldenText], timeout_s: float
) -> dict[int, GoldenPrediction]:
    """Ask a model about golden texts; return its predictions by the places of the texts.

    Raises:
        DeploymentError: it does not answer, or another process may listen at its address, which is
            checked before each text; the number of the text is named.
        ServingError: it does not say what it takes.
    """
    opened = Endpoint(
        place.url, model=place.model, batch_size=1, timeout_s=timeout_s, retries=NO_RETRY
    )
    with opened as endpoint:
        return {row: _predicted(endpoint, place, row, text) for row, text in texts.items()}


def _predicted(endpoint: Endpoint, place: Place, row: int, text: GoldenText) -> GoldenPrediction:
    try:
        place.check_address()
        (classification,) = endpoint.classify([text.example])
        logits = np.atleast_2d(np.array(classification.logits))[list(text.places)]
    except (BertenderError, IndexError) as error:
        raise DeploymentError(f"golden text {row + 1} gets no answer: {error}") from None
    return GoldenPrediction(classification.label, logits)


def _largest_bytes(text: GoldenText, problem: ProblemType[Any]) -> int:
    """Return the bytes of the largest text that a request about an example has."""
    return max(len(each.encode()) for each in problem.endpoint.to_texts(text.example))
