"""ADVICE: which scheme and runtime to try first, by what a machine has.

`bertender doctor` shows the row of the machine that it runs on; docs/choosing.md has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bertender.core.environment import Environment, has_int8_acceleration

__all__ = ["ADVICE", "Advice", "advice_for", "shown_advice"]

ARM = ("aarch64", "arm64")


@dataclass(frozen=True)
class Advice:
    """A row of ADVICE."""

    machine: str
    holds: Callable[[Environment], bool]
    single_texts: str
    batches: str
    """Of many texts, or long ones."""
    basis: str
    """What it rests on."""


ADVICE: tuple[Advice, ...] = (
    Advice(
        machine="an NVIDIA GPU",
        holds=lambda machine: machine.gpu is not None,
        single_texts="`export --precision float16`, `serve --runtime triton-onnxruntime --gpu`",
        batches="the same",
        basis="ONNX Runtime's kernels for GPUs, which has none for most 8-bit products; not "
        "measured",
    ),
    Advice(
        machine="a 64-bit ARM CPU",
        holds=lambda machine: machine.platform.split()[-1].lower() in ARM,
        single_texts="`quantize --scheme dynamic`, with `--target arm64` if made elsewhere",
        batches="the same",
        basis="the integers that its kernels take; not measured",
    ),
    Advice(
        machine="an x86 CPU with 8-bit dot products (VNNI or AMX)",
        holds=has_int8_acceleration,
        single_texts="`quantize --scheme dynamic`, `--runtime onnxruntime`",
        batches="`quantize --scheme static --runtime openvino`, `--runtime openvino`",
        basis="measured: [comparing.md](comparing.md#compare-runtimes)",
    ),
    Advice(
        machine="an x86 CPU without them",
        holds=lambda machine: True,
        single_texts="`export`; `quantize --target avx2` where bytes count",
        batches="the same",
        basis="its 8-bit products need several instructions; not measured",
    ),
)
"""The first that holds is taken."""


def advice_for(machine: Environment) -> Advice:
    """Return the row of ADVICE for a machine."""
    return next(row for row in ADVICE if row.holds(machine))


def shown_advice(machine: Environment) -> str:
    """Return the advice for a machine in one line."""
    row = advice_for(machine)
    if row.batches == "the same":
        return row.single_texts
    return f"for single short texts {row.single_texts}; for batches {row.batches}"
