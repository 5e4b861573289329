"""The supervisor leaves nothing behind, whichever of the three processes goes first."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path
from unittest.mock import Mock
from uuid import uuid4

import psutil
import pytest

from serve.server.supervisor import (
    HUNG,
    HURRYING,
    KILLING,
    STUB_DIED,
    STUB_NAME,
    TOKEN_MARK,
    TOKEN_VARIABLE,
    Rotation,
)
from serve.server.triton_process import SUPERVISOR
from tests.serve.processes import assert_gone

STUBBORN = ["sh", "-c", "trap '' TERM; sleep 60 & while true; do sleep 60; done"]


def supervise(
    workspace: Path,
    command: list[str],
    *options: str,
    log: str = "",
    log_max_bytes: int = 2**20,
    stop_timeout_s: str = "0.3",
) -> subprocess.Popen[bytes]:
    workspace.mkdir()
    traces = (str(workspace), f"test-{uuid4()}", log or str(workspace / "log"))
    limits = (str(log_max_bytes), stop_timeout_s)
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(SUPERVISOR), *options, *traces, *limits, *command],
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_to_stop_ends_the_whole_family_too(number: int, tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", STUBBORN)
    members = family(supervisor.pid, 3)
    supervisor.send_signal(number)
    assert supervisor.wait(10) == 0
    assert_gone(members)
    assert (tmp_path / "work").is_dir(), "the owner may start another command in it"
    supervisor.communicate()


def test_who_hurries_it_does_not_wait(tmp_path: Path) -> None:
    """Not for a command that takes a minute to end."""
    supervisor = supervise(tmp_path / "work", STUBBORN, stop_timeout_s="60")
    members = family(supervisor.pid, 3)
    assert supervisor.stdin is not None
    supervisor.stdin.close()
    with pytest.raises(subprocess.TimeoutExpired):
        supervisor.wait(1)
    supervisor.send_signal(HURRYING)
    assert supervisor.wait(10) == 0
    assert_gone(members)


def test_a_shell_that_starts_no_stub_is_noticed(tmp_path: Path) -> None:
    """Triton waits for ever for the stub."""
    shell = tmp_path / "bash"
    shell.symlink_to(shutil.which("sh") or "")
    supervisor = supervise(
        tmp_path / "work", ["sh", "-c", f"{shell} -c 'exec /no/stub' & exec sleep 60"]
    )
    assert supervisor.wait(30) == STUB_DIED
    assert "stub, process" in (tmp_path / "work" / "log").read_text()
    supervisor.communicate()


def test_the_exit_status_passes_through_and_the_log_stays(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", "echo why; exit 7"])
    assert supervisor.wait(10) == 7
    assert (tmp_path / "work" / "log").read_text() == "why\n"
    supervisor.communicate()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (9, "the server was ended by SIGKILL, signal 9: the kernel"),
        (11, "the server was ended by SIGSEGV, signal 11\n"),
    ],
)
def test_a_signal_that_ends_the_command_is_named(number: int, words: str, tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", f"kill -{number} $$"])
    assert supervisor.wait(10) == 128 + number
    assert words in (tmp_path / "work" / "log").read_text()
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


SEES = """
import subprocess, sys, time
print(sys.argv[1], flush=True)
subprocess.Popen([sys.argv[2], "60"])
time.sleep(60)
"""


def test_a_token_is_in_no_command_line_once_it_was_read(
    tmp_path: Path, stub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret&1")
    command = [sys.executable, "-c", SEES, f"key={TOKEN_MARK}", stub]
    supervisor = supervise(tmp_path / "work", command)
    stub_of(supervisor)
    (child,) = psutil.Process(supervisor.pid).children()
    wait_for(lambda: child.cmdline()[3] == "key=********")
    assert (tmp_path / "work" / "log").read_text() == "key=secret&1\n"
    lines = [Path(f"/proc/{each}/cmdline").read_text() for each in (supervisor.pid, child.pid)]
    assert TOKEN_MARK in lines[0] and not any("secret" in line for line in lines)
    assert "secret" not in str(child.environ())
    supervisor.communicate()


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
    assert supervisor.wait(15) == STUB_DIED
    assert_gone(members)
    assert "stub, process" in (tmp_path / "work" / "log").read_text()
    supervisor.communicate()


def test_a_stub_that_the_command_has_reaped_was_unloaded(tmp_path: Path, stub: str) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", f"{stub} 0.2; exec sleep 2.5"])
    assert supervisor.wait(10) == 0
    supervisor.communicate()


def test_other_processes_of_the_command_may_die(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", ["sh", "-c", "sleep 0.6 & exec sleep 4"])
    assert supervisor.wait(10) == 0
    supervisor.communicate()


def test_one_that_does_not_answer_is_ended_and_the_workspace_stays(tmp_path: Path) -> None:
    supervisor = supervise(tmp_path / "work", STUBBORN)
    members = family(supervisor.pid, 3)
    for member in members:
        member.suspend()
    supervisor.send_signal(KILLING)
    assert supervisor.wait(10) == HUNG
    assert_gone(members)
    assert "the server does not answer" in (tmp_path / "work" / "log").read_text()
    supervisor.communicate()


@pytest.mark.one_path
@pytest.mark.parametrize("log", ["/dev/full", "-"])
def test_a_log_that_cannot_be_written_ends_no_supervisor(
    tmp_path: Path, stub: str, log: str
) -> None:
    command = ["sh", "-c", f"{stub} 60 & exec sleep 60"]
    supervisor = supervise(tmp_path / "work", command, log=log)
    assert supervisor.stdin is not None and supervisor.stdout is not None
    supervisor.stdout.close()
    stub_of(supervisor).kill()
    assert supervisor.wait(10) == STUB_DIED
    supervisor.stdin.close()


def test_a_log_that_cannot_be_copied_is_left_for_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    log.write_bytes(bytes(9))
    full = Mock(side_effect=OSError(ENOSPC, "no space left"))
    monkeypatch.setattr(shutil, "copyfile", full)
    rotation = Rotation(log, max_bytes=5)
    assert [rotation.run(now_s) for now_s in (1, 1.1, 60)] == [False] * 3
    assert full.call_count == 1
    monkeypatch.undo()
    assert rotation.run(60.5) is False and rotation.run(61.5) is True
    assert log.stat().st_size == 0 and (tmp_path / "log.1").stat().st_size == 9


@pytest.mark.parametrize("mark", [False, True])
def test_a_candidate_that_dies_at_once_is_known_by_its_mark(mark: bool, tmp_path: Path) -> None:
    """Nobody has seen its command line."""
    stub = tmp_path / STUB_NAME
    stub.write_text(f"#!/bin/sh\n{'touch ' + str(tmp_path) + '/work/candidate-$$' * mark}\n")
    stub.chmod(0o755)
    supervisor = supervise(tmp_path / "work", ["sh", "-c", f"{stub} & exec sleep 9"])
    assert supervisor.wait(30) == (0 if mark else STUB_DIED)
    supervisor.communicate()


@pytest.mark.parametrize(("model", "status"), [("classifier-candidate", 0), ("classifier", 70)])
def test_a_candidate_may_die(model: str, status: int, tmp_path: Path) -> None:
    """Its process is known by the first argument, MODEL/VERSION/model.py."""
    code = tmp_path / model / "1" / "model.py"
    code.parent.mkdir(parents=True)
    code.write_text("sleep 60\n")
    stub = tmp_path / STUB_NAME
    stub.symlink_to(shutil.which("dash") or shutil.which("sh") or "")
    supervisor = supervise(tmp_path / "work", ["sh", "-c", f"{stub} {code} & exec sleep 9"])
    process = stub_of(supervisor)
    time.sleep(1.5)  # long enough to be seen alive
    process.kill()
    assert supervisor.wait(30) == status
    supervisor.communicate()
