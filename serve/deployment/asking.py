"""Asking a served model about golden texts, one text a request."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bertender.core.errors import BertenderError, DeploymentError
from bertender.core.golden import GoldenText, GoldenTexts
from bertender.measure.golden_check import GoldenCheck, GoldenPrediction, check_golden
from serve.client import Endpoint

__all__ = ["ask_golden", "readable"]


def readable(golden: GoldenTexts, limits: Mapping[str, str]) -> GoldenTexts:
    """Return the golden texts that a server with these limits reads as they were read before.

    Args:
        golden: of an artifact.
        limits: parameters of the backend; `max_length` cuts texts that were whole when they were
            stored, and those of over `max_text_bytes` are refused.

    Raises:
        DeploymentError: there is none.
    """
    most_tokens = int(limits.get("max_length") or 10**9)
    most_bytes = int(limits.get("max_text_bytes") or 10**9)
    texts = tuple(
        text for text in golden.texts if text.tokens <= most_tokens and _bytes(text) <= most_bytes
    )
    if not texts:
        raise DeploymentError(
            f"no golden text is within the server's limits (max_length={limits.get('max_length')}, "
            f"max_text_bytes={limits.get('max_text_bytes')}), so that nothing would be compared. "
            "Serve with larger ones."
        )
    return golden.model_copy(update={"texts": texts})


def ask_golden(url: str, model: str, golden: GoldenTexts, timeout_s: float) -> GoldenCheck:
    """Ask a model about golden texts, and compare its predictions.

    Raises:
        DeploymentError: it does not answer; the number of the text is named.
    """
    with Endpoint(url, model=model, batch_size=1, timeout_s=timeout_s) as endpoint:
        predictions = [_predicted(endpoint, row, text) for row, text in enumerate(golden.texts)]
        return check_golden(golden, predictions, endpoint.problem)


def _predicted(endpoint: Endpoint, row: int, text: GoldenText) -> GoldenPrediction:
    try:
        (classification,) = endpoint.classify([text.example])
        logits = np.atleast_2d(np.array(classification.logits))[list(text.places)]
    except (BertenderError, IndexError) as error:
        raise DeploymentError(f"golden text {row + 1} gets no answer: {error}") from None
    return GoldenPrediction(classification.label, logits)


def _bytes(text: GoldenText) -> int:
    """Return the most bytes that one of the texts of an example takes on the way."""
    return max(len(" ".join(text.example).encode()), 1)
