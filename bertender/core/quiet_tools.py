"""ONNX Runtime's tools log what they look at and advise; here that stays theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_tools"]


@contextmanager
def quiet_tools() -> Iterator[None]:
    """Let nothing below an error be logged, and keep the handlers that were there.

    To be around the tools' import, too: one of the modules sets the root logger up for itself.
    """
    root, disabled = logging.getLogger(), logging.root.manager.disable
    handlers = [*root.handlers]
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
