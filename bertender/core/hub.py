"""Asking whether a model hub answers, before libraries spend minutes on retries."""

from __future__ import annotations

import os

import httpx
from huggingface_hub import constants

from bertender.core.errors import HubUnreachableError

__all__ = ["require_hub"]

PROBE_SECONDS = 4.0


def require_hub(wanted: str, ways_out: str) -> None:
    """Raise HubUnreachableError within seconds unless a hub can be asked for `wanted`.

    Args:
        wanted: what is to be fetched, for the message.
        ways_out: what the user can do instead, one sentence.
    """
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_HUB_OFFLINE") == "1":
        raise HubUnreachableError(
            f"{wanted} is not on this machine and HF_HUB_OFFLINE is set. {ways_out}"
        )
    try:
        httpx.head(constants.ENDPOINT, timeout=PROBE_SECONDS)
    except httpx.HTTPError as error:
        raise HubUnreachableError(
            f"{wanted} is not on this machine and the hub does not answer ({error}). {ways_out}"
        ) from None
