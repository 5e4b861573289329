"""Cores by affinity and by the quotas of both kinds of control groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from bertender.core.hardware import threads_by_default, usable_cores

V2, V1 = "0::/a/b\n", "3:cpuset:/\n1:cpu,cpuacct:/a\n0::/\n"

GROUPS: Mapping[str, tuple[str, dict[str, str], int]] = {
    "no control groups": ("", {}, 8),
    "v2 without a limit": (V2, {"a/b/cpu.max": "max 100000\n"}, 8),
    "v2": (V2, {"a/b/cpu.max": "300000 100000\n"}, 3),
    "v2, part of a core": (V2, {"a/b/cpu.max": "50000 100000\n"}, 1),
    "v2, a core and a half": (V2, {"a/b/cpu.max": "150000 100000\n"}, 1),
    "v2, the group above is smaller": (
        V2,
        {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "200000 100000\n"},
        2,
    ),
    "v2 in a container, which sees its own group as the root": (V2, {"cpu.max": "4000 1000\n"}, 4),
    "v2, more than the affinity": (V2, {"cpu.max": "9900000 100000\n"}, 8),
    "v1 without a limit": (
        V1,
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "-1\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
        8,
    ),
    "v1": (
        V1,
        {
            "cpu,cpuacct/a/cpu.cfs_quota_us": "250000\n",
            "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n",
        },
        2,
    ),
    "v1 in a container": (
        "1:cpu:/docker/123\n",
        {"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"},
        3,
    ),
    "damaged": (V2, {"a/b/cpu.max": "many\n"}, 8),
}
"""Content of /proc/self/cgroup, files below /sys/fs/cgroup, and the cores of 8 that are left."""


@pytest.mark.parametrize("case", GROUPS)
def test_the_smallest_limit_counts(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    own, files, cores = GROUPS[case]
    for name, content in {"proc/self/cgroup": own}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(content)
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert usable_cores(tmp_path) == cores


def test_this_machine_has_a_core() -> None:
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("value", "threads"), [("3", 3), (" 4,2", 4), ("", 0), ("many", 0), ("-1", 0), (None, 0)]
)
def test_the_variable_that_pytorch_reads_sets_the_threads(
    value: str | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if value is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert threads_by_default() == threads
