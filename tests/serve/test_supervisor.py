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


def supervise(
    workspace: Path, command: list[str], *, log: str = "", log_max_bytes: int = 2**20
) -> subprocess.Popen[bytes]:
    workspace.mkdir()
    traces = (str(workspace), f"test-{uuid4()}", log or str(workspace / "log"))
    limits = (str(log_max_bytes), "0.3")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), *traces, *limits, *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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


def test_a_log_goes_on_after_an_earlier_one(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("the crash before\n")
    supervisor = supervise(tmp_path / "work", ["echo", "now"], log=str(log))
    assert supervisor.wait(10) == 0
    supervisor.communicate()
    assert log.read_text() == "the crash before\nnow\n"


def test_a_log_goes_to_standard_output(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", "echo out; echo err >&2"], log="-")
    assert supervisor.wait(10) == 0
    assert supervisor.communicate()[0] == b"out\nerr\n"


def test_a_log_is_begun_anew_before_it_fills_the_disk(tmp_path: Path) -> None:
    log = tmp_path / "log"
    lines = 'i=0; while true; do i=$((i+1)); echo "line $i"; sleep 0.002; done'
    supervisor = supervise(tmp_path / "work", ["sh", "-c", lines], log=str(log), log_max_bytes=999)
    deadline = time.monotonic() + 20
    older = tmp_path / "log.1"
    while not (older.exists() and "line 1\n" not in older.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    supervisor.communicate()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1"]
    assert older.stat().st_size < 9000 and log.stat().st_size < 9000
    numbers = [int(line.split()[1]) for line in (older.read_text() + log.read_text()).splitlines()]
    assert len(numbers) > 9 and numbers == sorted(set(numbers))
