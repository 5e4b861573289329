"""A server in the foreground of a process, until SIGINT or SIGTERM."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from serve.config import ServeConfig
from serve.placing import Watch
from serve.repository import Models, by_name
from serve.served_runtimes import ENCODER_NAME
from serve.server import TritonServer, prepared
from serve.wire import MODEL_NAME

__all__ = ["report_overwritten", "serve_forever"]

logger = logging.getLogger(__name__)

OVERWRITTEN = (
    "files of %s were overwritten while they are served: %s The server goes on with the model that "
    "it has loaded. It could not be started with these files again: write a new model to a folder "
    "of its own, and let it take over with `bertender deploy`."
)
UNREADABLE = (
    "files of %s cannot be read while they are served: %s. The server goes on with the model that "
    "it has loaded. It could not be started again while that lasts."
)


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
            watch = Watch(server.repository)
            with server:
                on_ready(server)
                server.wait(lambda: report_overwritten(watch, models))
    except KeyboardInterrupt:
        logger.info("stopped on request")


def report_overwritten(watch: Watch, models: Models) -> None:
    """Warn at once that somebody writes into what is served, not at the next start.

    Args:
        watch: of the repository of the server.
        models: what it serves.
    """
    sources = by_name(models)
    for folder, wrong in watch.overwritten().items():
        name = folder.relative_to(watch.repository).parts[0]
        source = sources[MODEL_NAME if name == ENCODER_NAME else name].path
        logger.warning(UNREADABLE if isinstance(wrong, OSError) else OVERWRITTEN, source, wrong)


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
