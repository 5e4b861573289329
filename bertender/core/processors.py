"""The instructions of a processor that 8-bit models run on."""

from __future__ import annotations

from bertender.core.environment import Environment, cpu_facts

__all__ = ["INT8_FLAGS", "cpu_has_int8_acceleration", "has_int8_acceleration", "is_arm64"]

INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
"""Instructions of x86 for int8 dot products."""


def has_int8_acceleration(environment: Environment) -> bool:
    """Return whether the CPU has instructions for int8 dot products (VNNI or AMX)."""
    return not INT8_FLAGS.isdisjoint(environment.cpu_flags)


def cpu_has_int8_acceleration() -> bool:
    """Return whether this CPU has them, without looking up anything else of the machine.

    False on systems other than Linux, which do not report the CPU's flags.
    """
    _, flags = cpu_facts()
    return not INT8_FLAGS.isdisjoint(flags)


def is_arm64(environment: Environment) -> bool:
    """Return whether the CPU is a 64-bit ARM one."""
    return environment.platform.split()[-1].lower() in ("aarch64", "arm64")
