"""A server in the foreground of a process, until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from serve.config import ServeConfig
from serve.repository import Models
from serve.server import TritonServer, prepared

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
        with _interrupted_by_signals() as signals, prepared(models, config) as server:
            signals.again = server.hurry
            with server:
                on_ready(server)
                server.wait()
    except KeyboardInterrupt:
        logger.info("stopped on request")


class _Signals:
    """What signals do: the first interrupts, so that all is stopped in order; any further one
    hurries that, and interrupts nothing."""

    def __init__(self) -> None:
        self.again: Callable[[], None] = lambda: None
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            self.again()
            return
        self.came = True
        raise KeyboardInterrupt


@contextmanager
def _interrupted_by_signals() -> Iterator[_Signals]:
    """Make SIGTERM interrupt the block just as SIGINT (Ctrl-C) does."""
    signals = _Signals()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signals)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
