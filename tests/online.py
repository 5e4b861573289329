"""Letting huggingface_hub connect in a test: it keeps a session, and one made offline refuses."""

from __future__ import annotations

from typing import Any

from huggingface_hub import utils

__all__ = ["forget_sessions"]


def forget_sessions() -> None:
    """Let the next request make a session of its own."""
    library: Any = utils
    # from huggingface_hub 1 on there is one, of httpx
    forget = "close_session" if hasattr(library, "close_session") else "reset_sessions"
    getattr(library, forget)()
