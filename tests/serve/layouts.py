"""Servers laid out as in NVIDIA's container, made of the files of the installed one."""

from __future__ import annotations

import shutil
from pathlib import Path

from serve.server.installation import find_installation

__all__ = [
    "BREAK_VARIABLE",
    "ENCODER_RUNTIME",
    "LOAD_VARIABLE",
    "LOG_VARIABLE",
    "lay_out",
    "lay_out_with_encoders",
]

ENCODER_RUNTIME = "triton-onnxruntime"

BREAK_VARIABLE, LOG_VARIABLE, LOAD_VARIABLE = "STAND_IN_BREAK", "STAND_IN_LOG", "STAND_IN_LOAD_S"
"""Environment of the stand-in: a token at which it fails, a file for the shapes of its inputs, and
how long it takes to load."""

STAND_IN = Path(__file__).with_name("stand_in_onnxruntime.py")
"""A backend in Python with the name, the files and the checks of Triton's own `onnxruntime`."""


def lay_out(root: Path, version: str | None) -> Path:
    """Link the installed server into `root`, as of `version`; return the path of the binary."""
    found = find_installation()
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "tritonserver").symlink_to(found.binary)
    (root / "lib").symlink_to(found.libraries)
    backend = root / "backends" / "python"
    backend.mkdir(parents=True)
    for file in (*found.python_backend.glob("*.*"), found.stub):
        (backend / file.name).symlink_to(file.resolve())
    if version:
        (root / "TRITON_VERSION").write_text(f"{version}\n")
    return root / "bin" / "tritonserver"


def lay_out_with_encoders(root: Path) -> Path:
    """Lay out a server with a stand-in for the backend `onnxruntime`; return its binary."""
    binary = lay_out(root, "2.51.0")
    library = root / "backends" / "python" / "libtriton_python.so"
    original = library.resolve()
    library.unlink()
    shutil.copyfile(original, library)  # Triton runs no backend in Python through a link
    (root / "backends" / "onnxruntime").mkdir()
    (root / "backends" / "onnxruntime" / "model.py").symlink_to(STAND_IN)
    return binary
