"""The supervisor leaves nothing behind, whichever of the three processes goes first."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from serve.in_flight import InFlight
from serve.server import SUPERVISOR
from serve.supervisor import STUB_DIED, STUB_NAME
from tests.serve.processes import assert_gone

STUBBORN = ["sh", "-c", "trap '' TERM; sleep 60 & while true; do sleep 60; done"]


def supervise(
    workspace: Path, command: list[str], *options: str, stop_timeout_s: str = "0.3"
) -> subprocess.Popen[bytes]:
    workspace.mkdir()
    traces = (str(workspace), f"test-{uuid4()}", str(workspace / "log"))
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), *options, *traces, stop_timeout_s, *command],
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


@pytest.fixture
def stub(tmp_path: Path) -> str:
    """A command with the name of a Python stub, which sleeps."""
    path = tmp_path / STUB_NAME
    path.symlink_to(shutil.which("sleep") or "")
    return str(path)


def wait_for(condition: Callable[[], object], timeout_s: float = 10) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def stub_of(supervisor: subprocess.Popen[bytes], but: int = 0) -> psutil.Process:
    """Wait for a stub, another than `but`."""

    def found() -> list[psutil.Process]:
        members = psutil.Process(supervisor.pid).children(recursive=True)
        return [each for each in members if each.name() == STUB_NAME and each.pid != but]

    wait_for(found)
    return found()[0]


def test_a_command_does_not_outlive_its_stub(tmp_path: Path, stub: str) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", f"{stub} 60 & exec sleep 60"])
    members = family(supervisor.pid, 2)
    stub_of(supervisor).kill()
    assert supervisor.wait(3) == STUB_DIED
    assert_gone(members)
    assert "stub, process" in (tmp_path / "work" / "log").read_text()
    supervisor.communicate()


def test_a_stub_that_the_command_has_reaped_was_unloaded(tmp_path: Path, stub: str) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", f"{stub} 0.2; exec sleep 2.5"])
    assert supervisor.wait(10) == 0
    supervisor.communicate()


def test_other_processes_of_the_command_may_die(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", "sleep 0.1 & exec sleep 2.5"])
    assert supervisor.wait(10) == 0
    supervisor.communicate()


def test_it_starts_again_once_it_was_ready(tmp_path: Path, stub: str) -> None:
    command = ["sh", "-c", f"{stub} 60 & exec sleep 60"]
    supervisor = supervise(tmp_path / "work", command, "--restart")
    assert supervisor.stdin is not None
    supervisor.stdin.write(b"ready\n")
    supervisor.stdin.flush()
    first = stub_of(supervisor)
    first.kill()
    second = stub_of(supervisor, but=first.pid)
    assert "starts again in 0.5 s" in (tmp_path / "work" / "log").read_text()
    supervisor.communicate(timeout=10)
    assert_gone([first, second])
    assert not (tmp_path / "work").exists()


def test_what_was_never_ready_is_not_started_again(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", "exit 7"], "--restart")
    assert supervisor.wait(10) == 7
    supervisor.communicate()


def test_it_is_not_started_again_for_ever(tmp_path: Path) -> None:
    """The delays are cut short here, in a copy of the file."""
    text = SUPERVISOR.read_text().replace("(0.5, 1.0, 2.0, 4.0, 8.0)", "(0.05, 0.1)")
    assert text != SUPERVISOR.read_text()
    (tmp_path / "supervisor.py").write_text(text)
    (tmp_path / "work").mkdir()
    log = tmp_path / "work" / "log"
    traces = (str(tmp_path / "work"), f"test-{uuid4()}", str(log), "0.3")
    command = ["sh", "-c", "sleep 0.3; echo again; exit 7"]
    supervisor = subprocess.Popen(
        [sys.executable, "-I", "-S", tmp_path / "supervisor.py", "--restart", *traces, *command],
        stdin=subprocess.PIPE,
    )
    assert supervisor.stdin is not None
    supervisor.stdin.write(b"ready\n")
    supervisor.stdin.flush()
    assert supervisor.wait(10) == 7
    assert log.read_text().count("again\n") == 3
    assert log.read_text().endswith("the server ended 3 times, and stays so\n")
    supervisor.communicate()


@pytest.mark.parametrize(("count", "seconds"), [(0, (1.0, 2.5)), (3, (3.0, 4.5))])
def test_it_waits_for_requests_and_not_for_connections(
    tmp_path: Path, count: int, seconds: tuple[float, float]
) -> None:
    """The command, as Triton with an idle connection, does not end when it is asked to."""
    supervisor = supervise(tmp_path / "work", STUBBORN, stop_timeout_s="3")
    InFlight(str(tmp_path / "work")).add(count)
    members = family(supervisor.pid, 3)
    asked = time.monotonic()
    supervisor.communicate(timeout=10)
    assert seconds[0] < time.monotonic() - asked < seconds[1]
    assert_gone(members)
