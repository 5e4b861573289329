"""Versions of packages under a table."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.core.machine import Environment

__all__ = ["versions_of"]

CPU_PACKAGE, GPU_PACKAGE = "onnxruntime", "onnxruntime-gpu"
"""They have the same files: of the two, only one can run."""


def versions_of(environment: Environment, packages: Sequence[str], *, on_gpu: bool) -> str:
    """Return the names and versions of those packages that ran, in words.

    Args:
        environment: with what is installed.
        packages: that may have run, as their names.
        on_gpu: whether a GPU ran something, which only ONNX Runtime's package for GPUs can.
    """
    other = CPU_PACKAGE if on_gpu else GPU_PACKAGE
    installed = environment.versions
    ran = (name for name in packages if name in installed and name != other)
    return ", ".join(f"{name} {installed[name]}" for name in ran)
