"""Versions of packages under a table."""

from __future__ import annotations

from collections.abc import Sequence

from bertender.core.environment import Environment

__all__ = ["versions_of"]

REPLACED = {"onnxruntime": "onnxruntime-gpu"}
"""Package -> the one with the same files, which runs where both are installed."""


def versions_of(environment: Environment, packages: Sequence[str]) -> str:
    """Return the names and versions of those packages that ran, in words."""
    installed = environment.versions
    ran = (name for name in packages if name in installed and REPLACED.get(name) not in installed)
    return ", ".join(f"{name} {installed[name]}" for name in ran)
