"""ADVICE: which scheme and runtime to try first for each use, by what a machine has.

`bertender doctor` shows the row of the machine that it runs on; docs/choosing.md has all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from bertender.core.environment import Environment
from bertender.core.processors import has_int8_acceleration, is_arm64
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES

__all__ = [
    "ADVICE",
    "NAMES",
    "USES",
    "Advice",
    "Choice",
    "advice_for",
    "shown_advice",
    "shown_reasons",
]

USES: Mapping[str, str] = {
    "single": "for single short texts",
    "batches": "for batches, or long texts",
    "exact": "where 8 bits lose too much",
}
"""Name of a use -> words."""


NAMES = "STUDENT is a torch artifact, GRAPH the one that `bertender export` made of it"
"""Placeholders for artifacts in commands; MODEL is the one to serve."""


@dataclass(frozen=True)
class Choice:
    """Commands to try first for a use."""

    make: str
    """Command that makes the artifact to serve, by NAMES."""
    runtime: str = DEFAULT_RUNTIME
    """Row of RUNTIMES that runs it."""

    @property
    def commands(self) -> tuple[str, str]:
        return self.make, f"bertender serve MODEL --runtime {self.runtime}"

    def on(self, machine: Environment) -> Choice:
        """Return the choice, in the default runtime where a CPU lacks what its own needs."""
        runs = RUNTIMES[self.runtime].runs_on(machine.cpu_flags)
        return self if runs else replace(self, runtime=DEFAULT_RUNTIME)


@dataclass(frozen=True)
class Advice:
    """A row of ADVICE."""

    machine: str
    holds: Callable[[Environment], bool]
    choices: Mapping[str, Choice]
    """Use -> what to try first for it."""
    why: str
    basis: str
    """What it rests on."""


FLOAT = "bertender export STUDENT --out MODEL"
DYNAMIC = Choice("bertender quantize GRAPH --scheme dynamic --out MODEL")
STATIC_IN_OPENVINO = Choice(
    "bertender quantize GRAPH --scheme static --runtime openvino --out MODEL", "openvino"
)
BFLOAT16 = Choice(FLOAT, "openvino-bf16")
RUNTIME_TABLES = "[runtimes.md](runtimes.md#what-each-gave)"
GPU_TABLES = "[runtimes.md](runtimes.md#on-a-gpu)"
AVX2_TABLES = "[runtimes.md](runtimes.md#without-8-bit-dot-products)"
FUSED_ATTENTION = (
    "For single texts of a BERT, `--fused-attention` was faster still, with 6 layers. "
)

ADVICE: tuple[Advice, ...] = (
    Advice(
        machine="an NVIDIA GPU",
        holds=lambda machine: machine.gpu is not None,
        choices=dict.fromkeys(
            USES,
            Choice(f"{FLOAT} --precision float16", "onnxruntime-cuda"),
        ),
        why="ONNX Runtime has no kernels for most 8-bit MatMuls there. With 6 "
        "layers, float16 was not distinguished from float32 in speed or score; its file is half as "
        "large. Both were faster than float32 in ONNX Runtime on 16 cores, little for single short "
        "texts and a lot in batches. No 8-bit model was timed next to them, and for single short "
        "texts the row of the CPU may be as fast",
        basis=f"a model of 6 layers on one GPU: {GPU_TABLES}",
    ),
    Advice(
        machine="a 64-bit ARM CPU",
        holds=is_arm64,
        choices={
            **dict.fromkeys(
                ("single", "batches"),
                Choice("bertender quantize GRAPH --scheme dynamic --target arm64 --out MODEL"),
            ),
            "exact": Choice(FLOAT),
        },
        why="these are the integers that ONNX Runtime's kernels take",
        basis="not measured",
    ),
    Advice(
        machine="an x86 CPU with AMX",
        holds=lambda machine: "amx_int8" in machine.cpu_flags,
        choices={"single": DYNAMIC, "batches": STATIC_IN_OPENVINO, "exact": BFLOAT16},
        why="OpenVINO fuses more of what is between the MatMuls, and begins each run with more "
        f"work. {FUSED_ATTENTION}With 12 layers, dynamic scales lost score, and in OpenVINO static "
        "ones by the default calibrator (those by `minmax` did with 6 layers). A float model in "
        "bfloat16 lost none, as fast as 8 bits in batches with 6 layers, and slower with 12. "
        "Behind `bertender serve` with texts of mixed lengths, the throughput of static scales was "
        "not distinguished between the two runtimes, and one caller waits longer in OpenVINO",
        basis=f"models of 6 and 12 layers on one CPU: {RUNTIME_TABLES}",
    ),
    Advice(
        machine="an x86 CPU with VNNI, whose AMX the kernel denies",
        holds=lambda machine: bool(machine.denied_flags) and has_int8_acceleration(machine),
        choices={
            "single": DYNAMIC,
            "batches": STATIC_IN_OPENVINO,
            "exact": Choice(FLOAT, "openvino"),
        },
        why="see that the process may use AMX first. Without it, the bfloat16 of that CPU was "
        "slower than float32 in batches and nowhere faster, and floats were faster in OpenVINO in "
        f"batches alone. {FUSED_ATTENTION}With 12 layers, static scales by `--calibrator minmax` "
        "in OpenVINO were not distinguished from floats in score (others were not measured, nor "
        "dynamic ones); with 6 layers they lost some, and those by the default calibrator did not",
        basis=f"models of 6 and 12 layers on one CPU: {RUNTIME_TABLES}",
    ),
    Advice(
        machine="an x86 CPU with VNNI, without AMX",
        holds=has_int8_acceleration,
        choices={"single": DYNAMIC, "batches": STATIC_IN_OPENVINO, "exact": BFLOAT16},
        why="OpenVINO was faster in batches and at 128 tokens, and with 12 layers on one CPU of "
        "two for single texts too. Static scales by the default calibrator lost score with 12 "
        "layers on the same one. A float model in "
        "bfloat16 was slower than 8 bits but for single texts with 6 layers, and its score not "
        "distinguished from that of float32. "
        "Without bfloat16, the float model is for `--runtime onnxruntime`",
        basis=f"models of 6 and 12 layers on two CPUs: {RUNTIME_TABLES}",
    ),
    Advice(
        machine="an x86 CPU without either",
        holds=lambda machine: True,
        choices={
            **dict.fromkeys(
                ("single", "batches"),
                Choice("bertender quantize GRAPH --scheme dynamic --target avx2 --out MODEL"),
            ),
            "exact": Choice(FLOAT),
        },
        why="8-bit MatMuls are faster than those of floats in ONNX Runtime there, and slower in "
        "OpenVINO",
        basis=f"a model of 6 layers on one CPU: {AVX2_TABLES}",
    ),
)
"""The first that holds is taken; next to a GPU, the CPU's too."""


def advice_for(machine: Environment) -> list[Advice]:
    """Return the row of ADVICE for a machine: for one with a GPU, also that of its CPU."""
    holding = [row for row in ADVICE if row.holds(machine)]
    return holding[: 2 if machine.gpu else 1]


def shown_advice(machine: Environment, use: str) -> str:
    """Return the commands to try first for a use, and what they need."""
    choices = (row.choices[use].on(machine) for row in advice_for(machine))
    return "; or on the CPU: ".join(map(_line, choices))


def shown_reasons(machine: Environment) -> str:
    """Return why the commands for a machine are the first to try."""
    return "; on the CPU: ".join(row.why for row in advice_for(machine))


def _line(choice: Choice) -> str:
    runtime = RUNTIMES[choice.runtime]
    commands = ", then ".join(choice.commands)
    return commands if runtime.version else f"{commands} (needs {runtime.install})"
