"""The cores that a process may use: by its affinity, and by the quota of its control groups.

A container's CPU limit does not show in the affinity. A process with a thread for each core that it
sees is then throttled for most of each period.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

__all__ = ["share_of_cores", "threads_by_default", "usable_cores"]

CGROUPS = "sys/fs/cgroup"
THREADS = "OMP_NUM_THREADS"


def usable_cores(root: Path = Path("/")) -> int:
    """Return how many cores' worth of threads is of use, at least 1.

    Args:
        root: folder that has `proc` and `sys`, whose control groups are read.
    """
    return max(1, int(min([_cores_by_affinity(), *_quotas(root)])))


def share_of_cores(runs: int) -> int:
    """Return the threads that each of `runs` at once gets of the cores of this process."""
    return max(1, usable_cores() // runs)


def threads_by_default() -> int:
    """Return the threads of OMP_NUM_THREADS, which PyTorch reads too; 0 where it has no number.

    Of several numbers, for nested regions, the first holds (OpenMP 5.2, section 21.2.1).
    """
    first = os.environ.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def _cores_by_affinity() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: fewer than the machine has, in a container
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quotas(root: Path) -> Iterator[float]:
    """Yield the cores that each control group of this process, or above it, may use."""
    for line in _words(root / "proc/self/cgroup", "\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _along(root / CGROUPS, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in (controllers, "cpu"):
                yield from _along(root / CGROUPS / mount, path, _quota_v1)


def _along(mount: Path, path: str, quota_of: Callable[[Path], float | None]) -> Iterator[float]:
    """Yield the quotas from a group up to its mount; a container may not see its own path there."""
    own = PurePosixPath(path.lstrip("/"))
    for folder in (own, *own.parents):
        quota = quota_of(mount / folder)
        if quota is not None:
            yield quota


def _quota_v2(group: Path) -> float | None:
    return _ratio(_words(group / "cpu.max"))


def _quota_v1(group: Path) -> float | None:
    files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    return _ratio([word for name in files for word in _words(group / name)])


def _ratio(words: list[str]) -> float | None:
    """Return quota / period; None if it is unlimited ("max", or -1)."""
    try:
        quota, period = map(int, words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _words(path: Path, separator: str | None = None) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split(separator)
    except OSError:
        return []
