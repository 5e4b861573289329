"""The process that started the supervisor."""

import os
import select
import sys
import time

__all__ = ["Owner"]


class Owner:
    """The process that started this one, as standard input shows it."""

    gone = False
    was_ready = False

    def wait(self, timeout_s: float) -> bool:
        """Wait; return whether the owner has closed its end, at once when it does."""
        deadline = time.monotonic() + timeout_s
        while not self.gone and (left := deadline - time.monotonic()) > 0:
            if select.select([sys.stdin], [], [], left)[0]:
                line = os.read(sys.stdin.fileno(), 4096)
                self.gone, self.was_ready = not line, bool(line) or self.was_ready
        return self.gone
