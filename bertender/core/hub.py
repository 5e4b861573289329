"""Checks whether a model hub responds, before libraries spend minutes on retries."""

from __future__ import annotations

import logging
import os
import threading

from huggingface_hub import constants
from huggingface_hub.utils import build_hf_headers, get_session  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

PROBE_SECONDS = 4.0


def hub_cache() -> str:
    """Return the folder of downloads, where transformers looks too; it may have an older name."""
    names = ("TRANSFORMERS_CACHE", "PYTORCH_TRANSFORMERS_CACHE", "PYTORCH_PRETRAINED_BERT_CACHE")
    return next((os.environ[name] for name in names if name in os.environ), constants.HF_HUB_CACHE)


def hub_knows(place: str, seconds: float = PROBE_SECONDS) -> bool:
    """Return whether the hub knows of a place, asked for some seconds at most.

    Args:
        place: path on the hub, `api/models/NAME` or `api/datasets/NAME`.
        seconds: the longest wait. The thread is there because no timeout bounds the look-up of
            a host name.
    """
    statuses: list[int] = []

    def probe() -> None:
        try:
            headers = build_hf_headers()  # a private model responds only to its owner's token
            response = get_session().get(
                f"{constants.ENDPOINT}/{place}", headers=headers, timeout=seconds
            )
            response.raise_for_status()  # a proxy may respond instead
            statuses.append(response.status_code)
        except OSError as error:  # every error of the connection is one
            logger.info("the hub does not respond: %s", error)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    thread.join(seconds)
    return bool(statuses)
