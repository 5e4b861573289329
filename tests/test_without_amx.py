"""A command that AMX is denied to runs as on a CPU without it, and so does what it starts."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from benchmarks import without_amx
from bertender.core.cpu import AMX_FLAGS, cpu_facts, denied_flags
from bertender.core.errors import ConfigError

IS_LINUX = (platform.system(), platform.machine()) == ("Linux", "x86_64")
FACTS = """
import subprocess, sys
from bertender.core.cpu import amx_is_permitted, cpu_facts, denied_flags
print(amx_is_permitted(), *cpu_facts()[1], "denied", *denied_flags())
code = "from bertender.core.cpu import amx_is_permitted as is_permitted; print(is_permitted())"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(not IS_LINUX, reason="denies on Linux on x86_64")
def test_a_command_and_what_it_starts_have_no_amx() -> None:
    command = [sys.executable, "-m", "benchmarks.without_amx", sys.executable, "-c", FACTS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first, child = done.stdout.split("\n", 1)
    permitted, *flags = first.split()
    place = flags.index("denied")
    assert (permitted, child.strip()) == ("False", "False")
    assert flags[:place] == [flag for flag in cpu_facts()[1] if flag not in AMX_FLAGS]
    assert {*flags[place + 1 :]} == {*denied_flags(), *AMX_FLAGS.intersection(cpu_facts()[1])}


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(without_amx.platform, "system", lambda: "Darwin")
    with pytest.raises(ConfigError, match="on Linux on x86_64 only"):
        without_amx.deny_amx()


def test_without_a_command_its_use_is_shown() -> None:
    command = [sys.executable, "-m", "benchmarks.without_amx"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, "COMMAND" in done.stderr) == (1, True)
