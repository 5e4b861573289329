"""ONNX Runtime's quantization tools write their advice on the root logger; here it stays theirs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_tools"]


@contextmanager
def quiet_tools() -> Iterator[None]:
    """Keep the tools' messages from the user, and the handlers that they add from everybody.

    To be around their import, too: one of the modules sets the root logger up for itself.
    """
    root = logging.getLogger()
    level, handlers = root.level, [*root.handlers]
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
