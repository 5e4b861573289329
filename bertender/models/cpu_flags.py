"""Flags of the CPU that a runtime needs, and those that 8-bit sums need."""

from __future__ import annotations

import platform

from bertender.core.cpu import cpu_facts, cpu_has_int8_acceleration
from bertender.models.runtimes import Runtime

__all__ = ["lacking_flags", "saturates"]

X86 = ("x86_64", "amd64")


def lacking_flags(runtime: Runtime) -> tuple[str, ...]:
    """Return the flags of which a runtime needs one, where this CPU has none of them."""
    _, there = cpu_facts()
    return () if runtime.runs_on(there) else runtime.cpu_flags


def saturates() -> bool:
    """Return whether this CPU adds pairs of 8-bit products in 16 bits: x86 without dot products.

    False on systems other than Linux, which do not report the CPU's flags.
    """
    if platform.system() != "Linux" or platform.machine().lower() not in X86:
        return False
    return not cpu_has_int8_acceleration()
