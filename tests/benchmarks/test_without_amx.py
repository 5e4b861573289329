"""A command that AMX is denied to runs as on a CPU without it, and so does what it starts."""

from __future__ import annotations

import errno
import platform
import subprocess
import sys

import pytest

from benchmarks import without_amx
from bertender.core.cpu import AMX_FLAGS, cpu_facts, denied_flags
from bertender.core.errors import ConfigError

IS_LINUX = (platform.system(), platform.machine()) == ("Linux", "x86_64")
FACTS = """
import ctypes, subprocess, sys
from bertender.core import cpu
library = ctypes.CDLL(None, use_errno=True)
library.syscall(cpu.ARCH_PRCTL, cpu.REQUEST_PERMISSION, cpu.TILE_DATA)
print(ctypes.get_errno(), *cpu.cpu_facts()[1], "denied", *cpu.denied_flags())
code = "from bertender.core.cpu import amx_is_permitted as is_permitted; print(is_permitted())"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
"""
IN_IT = [sys.executable, "-m", "benchmarks.without_amx"]


@pytest.mark.skipif(not IS_LINUX, reason="denies on Linux on x86_64")
def test_a_command_and_what_it_starts_have_no_amx() -> None:
    done = subprocess.run([*IN_IT, sys.executable, "-c", FACTS], capture_output=True, text=True)
    if "takes no seccomp filter" in done.stderr:
        pytest.skip(done.stderr)
    first, child = done.stdout.split("\n", 1)
    error, *flags = first.split()
    place = flags.index("denied")
    # a kernel or CPU without AMX has another error
    assert (int(error), child.strip()) == (errno.EPERM, "False")
    assert flags[:place] == [flag for flag in cpu_facts()[1] if flag not in AMX_FLAGS]
    assert {*flags[place + 1 :]} == {*denied_flags(), *AMX_FLAGS.intersection(cpu_facts()[1])}


@pytest.mark.skipif(not IS_LINUX, reason="denies on Linux on x86_64")
def test_a_command_that_is_not_there_is_named() -> None:
    done = subprocess.run([*IN_IT, "no-such-command"], capture_output=True, text=True)
    assert done.returncode == 1 and "no-such-command does not run" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_amx.platform, "system", lambda: "Darwin")
    with pytest.raises(ConfigError, match="on Linux on x86_64 only"):
        without_amx.deny_amx()


def test_without_a_command_its_use_is_shown() -> None:
    done = subprocess.run(IN_IT, capture_output=True, text=True)
    assert (done.returncode, "COMMAND" in done.stderr) == (1, True)
