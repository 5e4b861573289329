"""The CPU of this machine: its model, and the instructions that this process may use.

Loads no other library.
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Iterable, Mapping
from pathlib import Path

__all__ = [
    "INTERESTING_FLAGS",
    "amx_is_permitted",
    "cpu_facts",
    "cpu_has_int8_acceleration",
    "denied_flags",
    "has_int8_flags",
]

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
"""Instructions that a process needs the kernel's permission for."""
ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA = 158, 0x1023, 18
"""Of Linux on x86_64: the number of arch_prctl, its ARCH_REQ_XCOMP_PERM, and AMX's registers."""


@functools.cache
def cpu_facts(cpuinfo: Path = CPUINFO) -> tuple[str, tuple[str, ...]]:
    """Return the CPU's model name and interesting flags; where `cpuinfo` is missing, no flags.

    Flags of `denied_flags` are not among them: runtimes take their kernels by what is left.
    """
    facts = _first_processor(cpuinfo)
    model = facts.get("model name") or platform.processor() or platform.machine()
    denied = denied_flags(cpuinfo)
    return model, tuple(flag for flag in _interesting(facts) if flag not in denied)


def denied_flags(cpuinfo: Path = CPUINFO) -> tuple[str, ...]:
    """Return the interesting flags that the CPU has and this process may not use."""
    there = (flag for flag in _interesting(_first_processor(cpuinfo)) if flag in AMX_FLAGS)
    return () if amx_is_permitted() else tuple(there)


@functools.cache
def amx_is_permitted() -> bool:
    """Return whether the kernel lets this process use AMX; asks it as ONNX Runtime and oneDNN do.

    Kernels before Linux 5.16 and the seccomp profiles of some containers refuse it, though the CPU
    has it; these libraries then run what a CPU without it runs.
    """
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        return True  # not asked for there
    error: int = ctypes.CDLL(None).syscall(ARCH_PRCTL, REQUEST_PERMISSION, TILE_DATA)
    return error == 0


def cpu_has_int8_acceleration() -> bool:
    """Return whether this CPU has instructions for int8 dot products (VNNI or AMX).

    False on systems other than Linux, which do not report the CPU's flags.
    """
    _, flags = cpu_facts()
    return has_int8_flags(flags)


def has_int8_flags(flags: Iterable[str]) -> bool:
    """Return whether flags of an x86 CPU have instructions for int8 dot products."""
    return not INT8_FLAGS.isdisjoint(flags)


def _interesting(facts: Mapping[str, str]) -> tuple[str, ...]:
    flags = {*facts.get("flags", "").split()}
    return tuple(flag for flag in INTERESTING_FLAGS if flag in flags)


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """Return the `key : value` lines of the first processor, or nothing where there are none."""
    try:
        first, _, _ = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
