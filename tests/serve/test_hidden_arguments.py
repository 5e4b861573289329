"""A secret argument reaches the program, and is in no command line of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

LAUNCHER = Path(__file__).parents[2] / "serve" / "hidden_arguments.py"
SECRET = "--secret=a value, with spaces & =signs"
SEEN = "import sys, json; print(json.dumps(sys.argv[1:])); sys.stdout.flush(); sys.stdin.read()"
FORBIDDEN = """
if os.getuid() == 0:
    os.setuid(65534)  # root may trace everything
LIBC.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: nobody else may trace it
"""


def start(*words: str, program: tuple[str, ...] = (str(LAUNCHER),)) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", *program, *words],
        env={"HIDDEN": SECRET, "LATER": "x"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_program_sees_it_and_its_command_line_does_not() -> None:
    process = start(sys.executable, "-c", SEEN, "first", "@HIDDEN", "@UNKNOWN", "last")
    assert process.stdout is not None
    seen = process.stdout.readline()
    command_line = psutil.Process(process.pid).cmdline()
    children = psutil.Process(process.pid).children()
    process.communicate()
    assert seen == f'["first", "{SECRET}", "@UNKNOWN", "last"]\n'
    assert command_line[-4:] == ["first", "@HIDDEN", "@UNKNOWN", "last"]
    assert not children and process.returncode == 0


def test_it_is_never_in_the_command_line_while_it_starts() -> None:
    """The command line is read as fast as can be, from the launcher's start to the program's."""
    process = start(sys.executable, "-c", SEEN, "@HIDDEN")
    place = Path(f"/proc/{process.pid}/cmdline")
    lines = set()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline and not any(line and b"-S" not in line for line in lines):
        lines.add(place.read_bytes())
    for _ in range(2000):
        lines.add(place.read_bytes())
    process.communicate()
    assert len(lines) >= 2 and not [line for line in lines if b"a value" in line]


def test_nothing_to_hide_is_only_run() -> None:
    process = start("/bin/echo", "plain")
    assert process.communicate() == ("plain\n", "")


def test_a_signal_during_the_start_is_the_programs() -> None:
    process = start(sys.executable, "-c", SEEN, "@HIDDEN")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGTERM


def test_where_tracing_is_forbidden_it_is_visible_and_that_is_reported() -> None:
    source = LAUNCHER.read_text().replace("\ndef main(", f"{FORBIDDEN}\ndef main(")
    output, errors = start("/bin/echo", "@HIDDEN", program=("-c", source)).communicate()
    assert output == f"{SECRET}\n", errors
    assert "may not be traced" in errors and "which every user of the machine may read" in errors
