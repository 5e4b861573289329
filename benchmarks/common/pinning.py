"""Cores for a server and for the generator of its load, so that neither takes the other's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from bertender.core.config import Record
from bertender.core.errors import ConfigError

__all__ = ["NOT_PINNED", "PINNED", "Pins", "pinned"]


class Pins(Record):
    """Cores by number; None where a process may use all of them."""

    server: int | None = None
    generator: int | None = None

    def check(self) -> None:
        """Raise ConfigError where one of them is not this process's to use, or both are one."""
        usable = sorted(os.sched_getaffinity(0))
        chosen = [core for core in (self.server, self.generator) if core is not None]
        if set(chosen) - set(usable) or len(set(chosen)) < len(chosen):
            raise ConfigError(
                f"server and generator on cores {chosen}: give two of {usable}, or --no-pin."
            )


NOT_PINNED = Pins()
PINNED = Pins(server=0, generator=1)


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Run the block, and the processes and threads that begin in it, on one core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
