"""The instructions of a processor that 8-bit models run on."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from bertender.core.cpu import cpu_facts, denied_flags, has_int8_flags
from bertender.core.environment import Environment

__all__ = ["has_int8_acceleration", "is_arm64", "processor_here", "processor_name"]

INSTRUCTIONS: Mapping[str, str] = {
    "amx_int8": "AMX",
    "avx512_vnni": "AVX-512 VNNI",
    "avx_vnni": "AVX-VNNI",
    "avx512f": "AVX-512",
    "avx2": "AVX2",
}
"""Flag of a CPU -> name of the instructions, the widest first."""


def has_int8_acceleration(environment: Environment) -> bool:
    """Return whether the CPU has instructions for int8 dot products (VNNI or AMX)."""
    return has_int8_flags(environment.cpu_flags)


def is_arm64(environment: Environment) -> bool:
    """Return whether the CPU is a 64-bit ARM one."""
    return environment.platform.split()[-1].lower() in ("aarch64", "arm64")


def processor_name(environment: Environment) -> str:
    """Return the model of the CPU, the widest of INSTRUCTIONS that it has, and what is denied."""
    return _processor(environment.cpu_model, environment.cpu_flags, environment.denied_flags)


def processor_here() -> str:
    """Return the name of this machine's; only the CPU is looked at, unlike by `environment`."""
    return _processor(*cpu_facts(), denied_flags())


def _processor(model: str, flags: Collection[str], denied_flags: Collection[str]) -> str:
    widest = next(_names(flags), "")
    denied = next((f"{name} denied" for name in _names(denied_flags)), "")
    shown = "; ".join(filter(None, (widest, denied)))
    return f"{model} ({shown})" if shown else model


def _names(flags: Collection[str]) -> Iterator[str]:
    return (name for flag, name in INSTRUCTIONS.items() if flag in flags)
