"""ADVICE: which scheme and runtime to try first, by what a machine has.

`bertender doctor` shows the row of the machine that it runs on; docs/choosing.md has all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bertender.core.environment import Environment
from bertender.core.processors import has_int8_acceleration, is_arm64

__all__ = ["ADVICE", "Advice", "advice_for", "shown_advice"]


@dataclass(frozen=True)
class Advice:
    """A row of ADVICE."""

    machine: str
    holds: Callable[[Environment], bool]
    single_texts: str
    why: str
    basis: str
    """What it rests on."""
    batches: str = ""
    """Of many texts, or long ones, where it differs."""


ADVICE: tuple[Advice, ...] = (
    Advice(
        machine="an NVIDIA GPU",
        holds=lambda machine: machine.gpu is not None,
        single_texts="`export --precision float16`, and in NVIDIA's container `serve --runtime "
        "triton-onnxruntime --gpu`",
        why="ONNX Runtime has no kernels for most 8-bit products there",
        basis="not measured",
    ),
    Advice(
        machine="a 64-bit ARM CPU",
        holds=is_arm64,
        single_texts="`quantize --scheme dynamic`, with `--target arm64` if made elsewhere",
        why="these are the integers that its kernels take",
        basis="not measured",
    ),
    Advice(
        machine="an x86 CPU with 8-bit dot products (VNNI or AMX)",
        holds=has_int8_acceleration,
        single_texts="`quantize --scheme dynamic`, `--runtime onnxruntime`",
        batches="`quantize --scheme static --runtime openvino`, `--runtime openvino`",
        why="OpenVINO fuses more of what is between the products, and begins each run with more "
        "work",
        basis="measured with models of 6 and 12 layers on two CPUs, where 8 bits lost some of the "
        "score with some of them: [comparing.md](comparing.md#compare-runtimes)",
    ),
    Advice(
        machine="an x86 CPU without them",
        holds=lambda machine: True,
        single_texts="`quantize --scheme dynamic`, with `--target avx2` if made elsewhere, "
        "`--runtime onnxruntime`",
        why="8-bit products are faster than those of floats in ONNX Runtime there, and slower in "
        "OpenVINO",
        basis="measured with a model of 6 layers on one CPU: "
        "[comparing.md](comparing.md#compare-runtimes)",
    ),
)
"""The first that holds is taken; next to a GPU, the CPU's too."""


def advice_for(machine: Environment) -> list[Advice]:
    """Return the row of ADVICE for a machine: for one with a GPU, also that of its CPU."""
    holding = [row for row in ADVICE if row.holds(machine)]
    return holding[: 2 if machine.gpu else 1]


def shown_advice(machine: Environment) -> str:
    """Return the advice for a machine in one line."""
    return "; or on the CPU: ".join(map(_line, advice_for(machine)))


def _line(row: Advice) -> str:
    if not row.batches:
        return f"{row.single_texts} ({row.why})"
    return f"for single short texts {row.single_texts}; for batches {row.batches} ({row.why})"
