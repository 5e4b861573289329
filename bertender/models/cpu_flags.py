"""Flags of the CPU that a runtime needs."""

from __future__ import annotations

from bertender.core.environment import cpu_facts
from bertender.models.runtimes import Runtime

__all__ = ["lacking_flags"]


def lacking_flags(runtime: Runtime) -> tuple[str, ...]:
    """Return the flags of which a runtime needs one, where this CPU has none of them."""
    if not runtime.cpu_flags:
        return ()
    _, there = cpu_facts()
    return () if set(runtime.cpu_flags) & set(there) else runtime.cpu_flags
