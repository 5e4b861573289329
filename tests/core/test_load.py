"""How busy the machine is: whose time counts, what is refused, and what a figure then says."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import psutil
import pytest

from bertender.core import machine as load_module
from bertender.core.errors import MachineBusyError
from bertender.core.machine import (
    BUSY_SHARE,
    CpuSeconds,
    LoadMeter,
    MachineLoad,
    busiest,
    check_load,
    check_load_now,
    cpu_seconds,
    noisy_loads,
    watched_load,
)

QUIET = MachineLoad(other_work=0.01, steal=0.0)
SHARED = MachineLoad(other_work=0.2, steal=0.0)
STOLEN = MachineLoad(other_work=0.0, steal=0.1)
UNKNOWN = MachineLoad(other_work=None, steal=None)
START = CpuSeconds(total=100.0, busy=50.0, steal=1.0, own=7.0)

Counters = Callable[..., None]


@pytest.fixture
def counters(monkeypatch: pytest.MonkeyPatch) -> Counters:
    """Let the next readings be these, and nobody wait."""

    def follow(*readings: CpuSeconds | None) -> None:
        left: Iterator[CpuSeconds | None] = iter(readings)
        monkeypatch.setattr(load_module, "cpu_seconds", lambda: next(left))
        monkeypatch.setattr(load_module, "time", SimpleNamespace(sleep=lambda seconds: None))

    return follow


def after(total: float, busy: float, steal: float = 0.0, own: float = 0.0) -> CpuSeconds:
    """The counters when so much has been added to START."""
    return CpuSeconds(START.total + total, START.busy + busy, START.steal + steal, START.own + own)


@pytest.mark.parametrize(
    ("reading", "other_work", "steal"),
    [
        (after(20.0, 10.0, own=10.0), 0.0, 0.0),
        (after(20.0, 11.0, own=10.0), 0.05, 0.0),
        (after(20.0, 12.0, steal=1.0, own=2.0), 0.5, 0.05),
        (after(20.0, 9.9, own=10.0), 0.0, 0.0),  # ticks: own time may be a little ahead
    ],
)
def test_other_work_is_what_is_left_of_the_cores_time_without_ones_own(
    reading: CpuSeconds, other_work: float, steal: float, counters: Counters
) -> None:
    counters(START, reading)
    assert LoadMeter().load == MachineLoad(other_work=other_work, steal=steal)


@pytest.mark.parametrize(
    ("load", "noisy"), [(QUIET, False), (SHARED, True), (STOLEN, True), (UNKNOWN, False)]
)
def test_more_than_5_percent_is_noisy_and_refused(load: MachineLoad, noisy: bool) -> None:
    assert load.noisy is noisy and BUSY_SHARE == 0.05
    check_load(load, noisy=True)
    if not noisy:
        check_load(load, noisy=False)
        return
    with pytest.raises(MachineBusyError, match=r"other work had .*allowed are 5%.*--noisy"):
        check_load(load, noisy=False)


def test_a_busy_machine_is_refused_before_anything_is_timed(counters: Counters) -> None:
    counters(START, after(2.0, 1.0))
    with pytest.raises(MachineBusyError, match=r"other work had 50\.0%"):
        check_load_now()
    counters(START, after(2.0, 1.0))
    with pytest.raises(MachineBusyError), watched_load(noisy=False):
        pytest.fail("timed on a busy machine")


def test_a_machine_that_becomes_busy_is_refused_afterwards(counters: Counters) -> None:
    quiet, timed = after(2.0, 0.0), after(12.0, 8.0, own=2.0)
    counters(START, quiet, quiet, timed)
    with pytest.raises(MachineBusyError, match=r"other work had 60\.0%"), watched_load(False):
        pass


def test_noisy_times_are_taken_at_once_and_say_so(counters: Counters) -> None:
    counters(START, after(10.0, 8.0, own=2.0))
    with watched_load(noisy=True) as meter:
        pass
    assert meter.load == MachineLoad(other_work=0.6, steal=0.0) == meter.load


def test_a_system_that_does_not_report_it_is_unknown(counters: Counters) -> None:
    counters(None, None, None)
    with watched_load(noisy=False) as meter:
        pass
    assert meter.load == UNKNOWN and "unknown" in str(meter.load)


def test_no_proc_stat_is_no_reading(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "PROC_STAT", load_module.PROC_STAT / "none")
    assert cpu_seconds() is None


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="the system has no affinity")
def test_only_usable_cores_count_and_guests_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")

    class Times(SimpleNamespace):
        def _asdict(self) -> dict[str, float]:
            return vars(self)

    cores = [
        Times(**dict(zip(fields, (5.0, 1, 1, 10, 1, 1, 1, 2, 3), strict=True))),
        Times(**dict.fromkeys(fields, 100.0)),
    ]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: cores)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    reading = cpu_seconds()
    assert reading and (reading.total, reading.busy, reading.steal) == (22.0, 9.0, 2.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5})
    both = cpu_seconds()
    assert both and both.total == 22.0 + 800.0, "cores that are numbered anew: all of them"


def own_seconds() -> float:
    reading = cpu_seconds()
    assert reading is not None
    return reading.own


def test_ones_own_work_is_counted_as_such() -> None:
    before = own_seconds()
    began = time.process_time()
    while time.process_time() < began + 0.3:
        pass
    assert own_seconds() - before >= 0.25


def test_the_work_of_children_is_ones_own_while_they_live_and_after() -> None:
    burn = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
    before = own_seconds()
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    assert own_seconds() - before >= 0.25
    child.communicate(b"\n")
    assert own_seconds() - before >= 0.25


def test_the_busiest_part_judges_the_whole() -> None:
    assert busiest([QUIET, SHARED, STOLEN]) == SHARED


def test_a_noisy_load_is_found_wherever_a_result_has_it() -> None:
    quiet, shared = QUIET.model_dump(), SHARED.model_dump()
    assert noisy_loads({"a": [{"load": shared}], "b": ({"load": quiet}, None, 3)}) == [SHARED]
    assert noisy_loads({"load": quiet}) == []
