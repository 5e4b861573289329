"""TARGETS: which integers suit the machine that will serve.

8-bit products are added up in 32 bits where the CPU has instructions for that (VNNI, AMX, the dot
products of ARM). Elsewhere x86 adds pairs of them in 16 bits first, which saturate: wrong outputs,
without an error. ONNX Runtime, as bertender opens it, takes slower and exact instructions there
where weights have more than 7 bits; others do not, by default.
"""

from __future__ import annotations

from dataclasses import dataclass

from bertender.core.environment import Environment, environment
from bertender.core.errors import ModelError
from bertender.core.processors import has_int8_acceleration, is_arm64
from bertender.core.table import Table
from bertender.models.cpu_flags import saturates
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES
from quantize.affine import INTEGERS

__all__ = [
    "AUTO",
    "TARGETS",
    "Target",
    "check_exact",
    "runs_here",
    "target_of",
]

AUTO = "auto"
X86 = frozenset({"vnni", "avx2"})
"""Targets whose integers are of the same kinds."""


@dataclass(frozen=True)
class Target:
    """A row of TARGETS."""

    summary: str
    activations: str = "uint8"
    """A row of INTEGERS."""
    weights: str = "int8-symmetric"
    """A row of INTEGERS."""
    refused: str = ""
    """Why nothing is quantized for it; empty where that is sound."""

    @property
    def has_8_bit_weights(self) -> bool:
        """Return whether weights have more than the 7 bits whose sums fit into 16 everywhere."""
        return INTEGERS[self.weights].highest > INTEGERS["int7-symmetric"].highest


TARGETS = Table(
    "target",
    {
        "vnni": Target("x86 with 8-bit dot products: AVX-512 VNNI, AVX-VNNI or AMX"),
        "avx2": Target("x86 without them: 7-bit weights, whose sums fit", weights="int7-symmetric"),
        "arm64": Target(
            "64-bit ARM, whose kernels need signed activations where these are static",
            "int8-symmetric",
        ),
        "gpu": Target(
            "an NVIDIA GPU",
            refused="ONNX Runtime's CUDA provider has no 8-bit kernels for these products, so that "
            "each would be turned back into floats. Export in float16 "
            "instead, as bertender export --precision float16, or quantize for the CPU",
        ),
    },
)


def target_of(name: str, machine: Environment | None = None) -> tuple[str, Target]:
    """Return a row of TARGETS with its name; for "auto", that of a machine, by default this one.

    Raises:
        ModelError: an 8-bit model would be slower there than the one it is made of.
    """
    chosen = _suited_to(machine or environment()) if name == AUTO else name
    target = TARGETS[chosen]
    if target.refused:
        raise ModelError(f"target={name!r}: {target.refused}.")
    return chosen, target


def runs_here(
    name: str, runtime: str = DEFAULT_RUNTIME, machine: Environment | None = None
) -> bool:
    """Return whether a machine, by default this one, computes graphs of a target as that does.

    Args:
        name: a row of TARGETS.
        runtime: the row of RUNTIMES that computes them.
        machine: where.
    """
    if not RUNTIMES[runtime].integer_products:
        return False
    here = _suited_to(machine or environment())
    if {name, here} == X86:
        return name == "avx2" or RUNTIMES[runtime].exact_on_x86
    return name == here


def check_exact(name: str, runtime: str) -> None:
    """Check that this CPU adds a target's products exactly in a runtime, so that gates can judge.

    Raises:
        ModelError: it would add them wrongly.
    """
    if saturates() and not RUNTIMES[runtime].exact_on_x86 and TARGETS[name].has_8_bit_weights:
        raise ModelError(
            f"target={name!r} with runtime={runtime!r}: this CPU has no 8-bit dot products, and "
            f"{RUNTIMES[runtime].title} would not add those of 8-bit weights exactly here. Give "
            "--target avx2, or quantize on a CPU of the kind that will serve."
        )


def _suited_to(machine: Environment) -> str:
    if is_arm64(machine):
        return "arm64"
    return "vnni" if has_int8_acceleration(machine) else "avx2"
