"""The instructions of a processor that 8-bit models run on."""

from __future__ import annotations

from bertender.core.cpu import has_int8_flags
from bertender.core.environment import Environment

__all__ = ["has_int8_acceleration", "is_arm64"]


def has_int8_acceleration(environment: Environment) -> bool:
    """Return whether the CPU has instructions for int8 dot products (VNNI or AMX)."""
    return has_int8_flags(environment.cpu_flags)


def is_arm64(environment: Environment) -> bool:
    """Return whether the CPU is a 64-bit ARM one."""
    return environment.platform.split()[-1].lower() in ("aarch64", "arm64")
