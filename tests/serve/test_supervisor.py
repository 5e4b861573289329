"""The supervisor leaves nothing behind, whichever of the three processes goes first."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from serve.server import SUPERVISOR
from tests.serve.processes import assert_gone

STUBBORN = ["sh", "-c", "trap '' TERM; sleep 60 & while true; do sleep 60; done"]


def supervise(workspace: Path, command: list[str]) -> subprocess.Popen[bytes]:
    workspace.mkdir()
    traces = (str(workspace), f"test-{uuid4()}", str(workspace / "log"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), *traces, "0.3", *command],
        stdin=subprocess.PIPE,
    )


def family(process_id: int, at_least: int) -> list[psutil.Process]:
    """Wait until the process has so many descendants, and return them."""
    deadline = time.monotonic() + 10
    while len(found := psutil.Process(process_id).children(recursive=True)) < at_least:
        assert time.monotonic() < deadline, found
        time.sleep(0.02)
    return found


@pytest.mark.parametrize(("command", "size"), [(["sleep", "60"], 1), (STUBBORN, 3)])
def test_closing_its_input_ends_the_whole_family(
    tmp_path: Path, command: list[str], size: int
) -> None:
    supervisor = supervise(tmp_path / "work", command)
    members = family(supervisor.pid, size)
    supervisor.communicate(timeout=10)
    assert_gone(members)
    assert not (tmp_path / "work").exists()


def test_the_exit_status_passes_through_and_the_log_stays(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", "echo why; exit 7"])
    assert supervisor.wait(10) == 7
    assert (tmp_path / "work" / "log").read_text() == "why\n"
    supervisor.communicate()


def test_the_command_dies_with_a_killed_supervisor(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sleep", "60"])
    members = family(supervisor.pid, 1)
    supervisor.kill()
    supervisor.communicate()
    assert_gone(members)
