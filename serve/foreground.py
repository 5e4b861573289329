"""A server in the foreground of a process, until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from serve.config import ServeConfig
from serve.repository import Models
from serve.server import TritonServer, serving

__all__ = ["serve_forever"]

logger = logging.getLogger(__name__)


def serve_forever(
    models: Models,
    config: ServeConfig,
    on_ready: Callable[[TritonServer], None] = lambda server: None,
) -> None:
    """Serve ONNX artifacts in the foreground; return after SIGINT or SIGTERM and a clean stop.

    Call it from the main thread. Errors as in `serving`.

    Raises:
        ServingError: the server ended by itself.
    """
    try:
        with _interrupted_by_signals(), serving(models, config) as server:
            on_ready(server)
            server.wait()
    except KeyboardInterrupt:
        logger.info("stopped on request")


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM interrupt the block just as SIGINT (Ctrl-C) does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
