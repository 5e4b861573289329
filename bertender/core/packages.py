"""Versions of installed packages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import metadata

__all__ = ["installed_version", "installed_versions"]

REPLACED_BY: Mapping[str, str] = {"onnxruntime": "onnxruntime-gpu"}
"""Package -> another that has the same modules, and takes its place."""


def installed_version(package: str) -> str | None:
    """Return the version of a package, or of what takes its place; None where neither is there."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        other = REPLACED_BY.get(package)
        return installed_version(other) if other else None


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those packages that are installed."""
    versions = {name: installed_version(name) for name in packages}
    return {name: version for name, version in versions.items() if version is not None}
