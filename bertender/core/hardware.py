"""Cores, CPU and GPU that this process may use. Needs only the standard library.

A container's CPU limit is in the quota of its control groups, not in the affinity. A process with a
thread for each visible core is then throttled for most of each period.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path, PurePosixPath

CGROUPS = "sys/fs/cgroup"
THREADS = "OMP_NUM_THREADS"

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's `mallopt`: their numbers in malloc.h."""


def usable_cores(root: Path = Path("/")) -> int:
    """Return the number of threads that can run at once, at least 1.

    Args:
        root: folder with `proc` and `sys`, where the control groups are read.
    """
    # fewer than the machine has, in a container on Linux
    has_affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    return max(1, int(min([cores, *_quotas(root)])))


def share_of_cores(runs: int) -> int:
    """Return the threads per run when `runs` run at once."""
    return max(1, usable_cores() // runs)


def threads_by_default() -> int:
    """Return the threads of OMP_NUM_THREADS, which PyTorch reads too; 0 if it has no number.

    Of several numbers, for nested regions, the first applies (OpenMP 5.2, section 21.2.1).
    """
    first = os.environ.get(THREADS, "").partition(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def set_allocator(parameter: int, value: int) -> bool:
    """Set bytes of `mallopt` for the rest of this process; return whether the C library did."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(parameter, value) == 1


def keep_freed_memory() -> None:
    """Keep what this process frees for its next tensors.

    Each step of a training frees the tensors that the next one allocates. Memory that went back to
    the system would be zeroed again by the kernel: 10 to 30 % of a step on a CPU. Up to 2 GB remain
    with the process.
    """
    # older versions of glibc refuse more than 32 MiB; without a threshold the others do harm
    if set_allocator(M_MMAP_THRESHOLD, 2**30) or set_allocator(M_MMAP_THRESHOLD, 2**25):
        set_allocator(M_TRIM_THRESHOLD, 2**31 - 1)
        set_allocator(M_TOP_PAD, 2**28)


def _quotas(root: Path) -> Iterator[float]:
    """Yield the cores that each control group of this process, and each group above it, may use."""
    for line in _words(root / "proc/self/cgroup", "\n"):
        controllers, _, path = line.partition(":")[2].partition(":")
        mounts, files = ["."], ["cpu.max"]  # version 2
        if controllers:
            mounts, files = [controllers, "cpu"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
            if "cpu" not in controllers.split(","):
                continue
        # from a group up to its mount; a container may not see its own path there
        own = PurePosixPath(path.lstrip("/"))
        for mount, group in product(mounts, (own, *own.parents)):
            folder = root / CGROUPS / mount / group
            words = [word for name in files for word in _words(folder / name)]
            try:
                quota, period = map(int, words)
            except ValueError:  # unlimited: "max"
                continue
            if quota > 0 and period > 0:  # -1 is unlimited too
                yield quota / period


def _words(path: Path, separator: str | None = None) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split(separator)
    except OSError:
        return []


CPUINFO = Path("/proc/cpuinfo")

INTERESTING_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
)
INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Instructions of x86 for int8 dot products."""
AMX_FLAGS = frozenset({"amx_bf16", "amx_int8"})
"""Instructions that need the kernel's permission."""
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""On Linux for x86_64: the number of arch_prctl, its ARCH_REQ_XCOMP_PERM, and AMX's registers."""


@functools.cache
def cpu_facts(cpuinfo: Path = CPUINFO) -> tuple[str, tuple[str, ...]]:
    """Return the CPU's model name and relevant flags; without `cpuinfo`, no flags.

    `denied_flags` are left out, since runtimes choose kernels by the permitted flags.
    """
    facts = _first_processor(cpuinfo)
    model = facts.get("model name") or platform.processor() or platform.machine()
    denied = denied_flags(cpuinfo)
    return model, tuple(flag for flag in _interesting(facts) if flag not in denied)


def denied_flags(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return the relevant flags that the CPU has but this process may not use."""
    there = (flag for flag in _interesting(_first_processor(cpuinfo)) if flag in AMX_FLAGS)
    return () if amx_is_permitted() else tuple(there)


@functools.cache
def amx_is_permitted() -> bool:
    """Return whether the kernel permits AMX, requesting it as ONNX Runtime and oneDNN do.

    Kernels before Linux 5.16 and the seccomp profiles of some containers deny AMX on CPUs that have
    it; these libraries then use the kernels for CPUs without it.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return True  # no permission needed there
    error: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)
    return error == 0


def has_int8_acceleration(flags: Iterable[str] | None = None) -> bool:
    """Return whether a CPU has instructions for int8 dot products (VNNI or AMX).

    Args:
        flags: flags of an x86 CPU; None for those of this machine, which systems other than Linux
            do not report.
    """
    return not INT8_FLAGS.isdisjoint(cpu_facts()[1] if flags is None else flags)


def _interesting(facts: Mapping[str, str]) -> tuple[str, ...]:
    flags = {*facts.get("flags", "").split()}
    return tuple(flag for flag in INTERESTING_FLAGS if flag in flags)


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """Return the `key : value` lines of the first processor, empty if there are none."""
    try:
        first, _, _ = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


DRIVER = "libcuda.so.1"
LONGEST_NAME_BYTES = 128
SUCCESS = 0


@dataclass(frozen=True)
class Gpu:
    """The first GPU that this process may use."""

    name: str | None
    """None if no GPU works."""
    failure: str = ""
    """The driver's error, if no GPU works."""


@functools.cache
def gpu() -> Gpu:
    """Return the first GPU, looked up once per process."""
    try:
        driver = ctypes.CDLL(DRIVER)
    except OSError:
        return Gpu(None, f"{DRIVER} cannot be loaded")
    device, name = ctypes.c_int(), ctypes.create_string_buffer(LONGEST_NAME_BYTES)
    calls = {
        "cuInit": (0,),  # fails if the driver has no GPU, or does not match its library
        "cuDeviceGet": (ctypes.byref(device), 0),
        "cuDeviceGetName": (name, LONGEST_NAME_BYTES, device),
    }
    for call, arguments in calls.items():
        if (result := getattr(driver, call)(*arguments)) != SUCCESS:
            return Gpu(None, f"{call} of the driver returns {result}")
    return Gpu(name.value.decode())


def gpu_problem() -> str:
    """Return why nothing can run on a GPU, as the end of a sentence; empty if a GPU works."""
    if gpu().name is not None:
        return ""
    return f"needs an NVIDIA GPU with its driver, and this process sees none: {gpu().failure}"
