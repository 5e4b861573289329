"""The CPU of this machine: its model, and the instructions that it has. Loads no other library."""

from __future__ import annotations

import functools
import platform
from collections.abc import Iterable
from pathlib import Path

__all__ = ["INTERESTING_FLAGS", "cpu_facts", "cpu_has_int8_acceleration", "has_int8_flags"]

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


@functools.cache
def cpu_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, tuple[str, ...]]:
    """Return the CPU's model name and interesting flags; where `cpuinfo` is missing, no flags."""
    facts = _first_processor(cpuinfo)
    flags = set(facts.get("flags", "").split())
    model = facts.get("model name") or platform.processor() or platform.machine()
    return model, tuple(flag for flag in INTERESTING_FLAGS if flag in flags)


def cpu_has_int8_acceleration() -> bool:
    """Return whether this CPU has instructions for int8 dot products (VNNI or AMX).

    False on systems other than Linux, which do not report the CPU's flags.
    """
    _, flags = cpu_facts()
    return has_int8_flags(flags)


def has_int8_flags(flags: Iterable[str]) -> bool:
    """Return whether flags of an x86 CPU have instructions for int8 dot products."""
    return not INT8_FLAGS.isdisjoint(flags)


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """Return the `key : value` lines of the first processor, or nothing where there are none."""
    try:
        first, _, _ = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}
