"""The process that started the supervisor, and signals that stand for its end."""

import os
import select
import signal
import sys
import time

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HURRYING = signal.SIGUSR1
POLL_S = 0.1


class Owner:
    """The process that started this one, as standard input shows it."""

    gone = False
    was_ready = False
    is_hurried = False
    """Whether the command is to be ended without waiting for what it has begun."""

    def listen(self) -> None:
        """Take a signal to stop for the end of the owner, so that the command never stays."""
        for number in STOPPING:
            signal.signal(number, lambda *_: self._stop(hurried=False))
        signal.signal(HURRYING, lambda *_: self._stop(hurried=True))

    def _stop(self, *, hurried: bool) -> None:
        self.gone, self.is_hurried = True, hurried or self.is_hurried

    def wait(self, timeout_s: float) -> bool:
        """Wait; return whether the owner has closed its end, at once when it does."""
        deadline = time.monotonic() + timeout_s
        while not self.gone and (left := deadline - time.monotonic()) > 0:
            # Python waits on after a signal
            if select.select([sys.stdin], [], [], min(left, POLL_S))[0]:
                line = os.read(sys.stdin.fileno(), 4096)
                self.gone, self.was_ready = self.gone or not line, bool(line) or self.was_ready
        return self.gone
