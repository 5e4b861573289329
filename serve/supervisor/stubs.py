"""The Python stubs of a command, and whether one of them has died."""

import time
from pathlib import Path
from typing import NamedTuple

__all__ = ["STUB_DIED", "STUB_NAME", "Stubs"]

STUB_DIED = 70
"""Exit status: a process of the command died, and the command went on without it."""

STUB_NAME = "triton_python_backend_stub"  # the kernel cuts names to 15 bytes
DISCOVERY_S = 1.0
GRACE_S = 0.5
PROCESSES = Path("/proc")


class _Process(NamedTuple):
    """A line of /proc/PID/stat, as far as it is of use."""

    name: str
    state: str
    parent: int


class Stubs:
    """The Python stubs that a command has started, looked up now and then."""

    def __init__(self, command: int) -> None:
        self.command = command
        self.known: list[int] = []
        self.dead_since: dict[int, float] = {}
        self.next_discovery = 0.0

    def dead(self) -> int | None:
        """Return a stub that died a while ago and that the command has not reaped."""
        now = time.monotonic()
        if now >= self.next_discovery:
            numbers = [int(path.name) for path in PROCESSES.iterdir() if path.name.isdigit()]
            self.known = [number for number in numbers if self._is_own(_process(number))]
            self.next_discovery = now + DISCOVERY_S
        looked_up = {number: _process(number) for number in self.known}
        dead = [each for each, its in looked_up.items() if self._is_own(its) and its.state == "Z"]
        self.dead_since = {each: self.dead_since.get(each, now) for each in dead}
        return next((each for each in dead if now - self.dead_since[each] > GRACE_S), None)

    def _is_own(self, process: _Process) -> bool:
        return process.parent == self.command and STUB_NAME.startswith(process.name)


def _process(number: int) -> _Process:
    """Return what the kernel says of a process; nothing when it is gone."""
    try:
        content = (PROCESSES / str(number) / "stat").read_text(errors="replace")
    except OSError:
        return _Process("", "", 0)
    before, _, after = content.rpartition(")")  # the name may hold anything, parentheses too
    state, parent, *_ = after.split()
    return _Process(before.partition("(")[2], state, int(parent))
