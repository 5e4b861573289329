"""Servers laid out as in NVIDIA's container, made of the wheel's files."""

from __future__ import annotations

from pathlib import Path

from serve.installation import find_installation

__all__ = ["lay_out"]


def lay_out(root: Path, version: str | None) -> Path:
    """Link the wheel's server into `root`, as of `version`; return the path of the binary."""
    found = find_installation()
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tritonserver").symlink_to(found.binary)
    (root / "lib").symlink_to(found.libraries)
    backend = root / "backends" / "python"
    backend.mkdir(parents=True)
    for file in (*found.python_backend.glob("*.*"), found.stub):
        (backend / file.name).symlink_to(file)
    if version:
        (root / "TRITON_VERSION").write_text(f"{version}\n")
    return root / "bin" / "tritonserver"
