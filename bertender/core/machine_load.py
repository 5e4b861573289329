"""Load of the machine by other work while something is timed.

Times that were taken next to other work measure that work more than a model. Every timing runs
under `watched_load`: it refuses a machine that is busy before the first text, watches it
meanwhile, and refuses the figures of one that became busy.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import MachineBusyError

BUSY_SHARE = 0.05
"""Of the cores' time; below it, others hardly change a time."""
SAMPLE_S = 1.0
PROC_STAT = Path("/proc/stat")
IDLE_FIELDS = ("idle", "iowait")
COUNTED_ELSEWHERE = ("guest", "guest_nice")
"""Linux counts them in `user` and `nice` too."""


class MachineLoad(Record):
    """Other load of the usable cores during a measurement, as shares of all their time."""

    other_work: float | None = Field(
        description="share that other processes had; None where the system does not report it"
    )
    steal: float | None = Field(
        description="share that the hypervisor gave to other machines; None as above"
    )

    @property
    def busy(self) -> float:
        """Share of the cores' time that was not the measurement's to use; 0 where unknown."""
        return (self.other_work or 0.0) + (self.steal or 0.0)

    @property
    def noisy(self) -> bool:
        """Whether the load makes figures of that time unreliable."""
        return self.busy > BUSY_SHARE

    def __str__(self) -> str:
        if self.other_work is None or self.steal is None:
            return "load unknown: this system does not report it"
        return (
            f"other work had {self.other_work:.1%} of the cores' time, and {self.steal:.1%} "
            "was stolen by the hypervisor"
        )


@dataclass(frozen=True)
class CpuSeconds:
    """CPU seconds of the usable cores since they started, and the measurement's part of them."""

    total: float
    busy: float
    steal: float
    own: float


def cpu_seconds() -> CpuSeconds | None:
    """Read the counters of now; None where the system has no /proc/stat."""
    if not PROC_STAT.is_file():
        return None
    cores = [each._asdict() for each in psutil.cpu_times(percpu=True)]
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
    if usable and max(usable) < len(cores):
        cores = [cores[number] for number in sorted(usable)]
    total = sum(
        seconds for core in cores for name, seconds in core.items() if name not in COUNTED_ELSEWHERE
    )
    idle = sum(core.get(name, 0.0) for core in cores for name in IDLE_FIELDS)
    steal = sum(core.get("steal", 0.0) for core in cores)
    # of this process, of its children and of theirs, ended or not
    own, this = 0.0, psutil.Process()
    for process in (this, *this.children(recursive=True)):
        with suppress(psutil.Error):  # it ended just now: its parent's times hold it
            times = process.cpu_times()
            own += times.user + times.system + times.children_user + times.children_system
    return CpuSeconds(total, total - idle - steal, steal, own)


class LoadMeter:
    """Watches the machine from its creation until `stop`."""

    def __init__(self) -> None:
        self.began = cpu_seconds()

    @cached_property
    def load(self) -> MachineLoad:
        """The load from the meter's creation until this is first read."""
        began, ended = self.began, cpu_seconds()
        if began is None or ended is None or ended.total <= began.total:
            return MachineLoad(other_work=None, steal=None)
        total = ended.total - began.total
        others = (ended.busy - began.busy) - (ended.own - began.own)
        steal = ended.steal - began.steal
        return MachineLoad(
            # counters move in ticks, so that a quiet machine can come out below 0
            other_work=round(min(max(others / total, 0.0), 1.0), 4),
            steal=round(min(max(steal / total, 0.0), 1.0), 4),
        )

    def stop(self) -> MachineLoad:
        """Return the load while the meter ran."""
        return self.load


@contextmanager
def watched_load(noisy: bool) -> Iterator[LoadMeter]:
    """Run a timing where nothing else runs; the meter's `load` belongs next to its figures.

    Args:
        noisy: time on a busy machine as well; the load then marks its figures as noisy.

    Raises:
        MachineBusyError: other work has more than BUSY_SHARE, before the block or in it.
    """
    if not noisy:
        check_load_now()
    meter = LoadMeter()
    yield meter
    check_load(meter.stop(), noisy)


def check_load_now() -> None:
    """Raise MachineBusyError where a short sample finds other work, before a long timing."""
    check_load(load_now(), noisy=False)


def load_now() -> MachineLoad:
    """Return the load of a short sample."""
    meter = LoadMeter()
    if meter.began is None:
        return MachineLoad(other_work=None, steal=None)
    time.sleep(SAMPLE_S)
    return meter.stop()


def check_load(load: MachineLoad, noisy: bool) -> None:
    """Raise MachineBusyError for a load that disturbs times, unless noisy ones are allowed."""
    if load.noisy and not noisy:
        raise MachineBusyError(
            f"this machine is busy: {load}; allowed are {BUSY_SHARE:.0%} together, since more "
            "changes what is timed. Stop the other work and run it again, or time with noisy=true "
            "(--noisy), which marks the figures."
        )


def busiest(loads: Sequence[MachineLoad]) -> MachineLoad:
    """Return the load of the busiest part of a measurement, which is what judges the whole."""
    return max(loads, key=lambda load: load.busy)


def noisy_loads(values: Any) -> list[MachineLoad]:
    """Return every load above BUSY_SHARE in a result's plain values, however deep."""
    if isinstance(values, dict):
        if values.keys() == MachineLoad.model_fields.keys():
            load = MachineLoad.model_validate(values)
            return [load] if load.noisy else []
        values = list(values.values())
    if isinstance(values, (list, tuple)):
        return [load for value in values for load in noisy_loads(value)]
    return []
