"""The Python stubs of a command, and whether one of them has died."""

import os
import time
from pathlib import Path
from typing import NamedTuple

STUB_DIED = 70
"""Exit status: a process of the command died, and the command went on without it."""

STUB_NAME = "triton_python_backend_stub"  # the kernel cuts names to 15 bytes
SHELL = "bash"
"""Triton runs `bash -c "exec STUB ..."`; one that dies as such has started no stub."""
CANDIDATE_SUFFIX = "-candidate"  # of `serve.wire`, which is not imported here
CANDIDATE_PREFIX = "candidate-"  # of `serve.backend.in_flight`, likewise
DISCOVERY_S = 1.0
GRACE_S = 1.5
"""Triton notices within a second that a stub has died while its model was loaded."""
GRACE_UNSEEN_S = 5.0
"""Of a stub that nobody has seen alive: most likely one of a model that did not load."""
PROCESSES = Path("/proc")
UNNAMED = "?"
"""Of a stub with other arguments than Triton's."""


class _Process(NamedTuple):
    """A line of /proc/PID/stat, as far as it is of use."""

    name: str
    state: str
    parent: int


class Stubs:
    """The Python stubs that a command has started, looked up now and then.

    Those of candidates, which `bertender deploy` tries, may die: nobody else waits for them.
    """

    def __init__(self, command: int, workspace: Path) -> None:
        self.command = command
        self.workspace = workspace
        self.known: dict[int, str] = {}
        self.dead_since: dict[int, float] = {}
        self.next_discovery = 0.0

    def dead(self) -> int | None:
        """Return a stub that died a while ago and that the command has not reaped."""
        now = time.monotonic()
        if now >= self.next_discovery:
            numbers = [int(path.name) for path in PROCESSES.iterdir() if path.name.isdigit()]
            own = [number for number in numbers if self._is_own(_process(number))]
            self.known = {number: self.known.get(number) or _model(number) for number in own}
            self.next_discovery = now + DISCOVERY_S
        looked_up = {number: _process(number) for number in self.known}
        dead = [each for each, its in looked_up.items() if self._is_own(its) and its.state == "Z"]
        self.dead_since = {each: self.dead_since.get(each, now) for each in dead}
        late = [each for each in dead if now - self.dead_since[each] > self._grace(each)]
        return next((each for each in late if not self._is_candidate(each)), None)

    def _is_candidate(self, number: int) -> bool:
        """Return whether a stub is one of a candidate: by its command line, or by its own mark."""
        marked = (self.workspace / f"{CANDIDATE_PREFIX}{number}").exists()
        return marked or self.known[number].endswith(CANDIDATE_SUFFIX)

    def _grace(self, number: int) -> float:
        return GRACE_S if self.known[number] else GRACE_UNSEEN_S

    def _is_own(self, process: _Process) -> bool:
        is_named = STUB_NAME.startswith(process.name) or process.name == SHELL
        return process.parent == self.command and is_named


def _model(number: int) -> str:
    """Return the name of the model whose stub a process is; nothing of one that has died."""
    try:
        words = (PROCESSES / str(number) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    # MODEL/VERSION/model.py is the first argument
    if not words[0] or Path(os.fsdecode(words[0])).name == SHELL:  # which is about to become one
        return ""
    parts = Path(os.fsdecode(words[1])).parts if len(words) > 1 else ()
    return parts[-3] if len(parts) > 2 else UNNAMED


def _process(number: int) -> _Process:
    """Return what the kernel says of a process; nothing when it is gone."""
    try:
        content = (PROCESSES / str(number) / "stat").read_text(errors="replace")
    except OSError:
        return _Process("", "", 0)
    before, _, after = content.rpartition(")")  # the name may hold anything, parentheses too
    state, parent, *_ = after.split()
    return _Process(before.partition("(")[2], state, int(parent))
