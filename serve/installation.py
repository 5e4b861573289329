"""Path of the real Triton server on this machine: the wheel of nvidia-pytriton carries it.

Only the wheel's files are used (`bin/tritonserver`, the Python backend, a stub for each Python
version); pytriton itself is never imported.
"""

from __future__ import annotations

import ctypes.util
import os
import sys
import sysconfig
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bertender.core.errors import ServerMissingError

__all__ = ["Installation", "find_installation"]

WHEEL = "nvidia-pytriton"
INSTALL_HINT = "Install it with `pip install 'bertender[server]'`."
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
STUB_NAME = "triton_python_backend_stub"

QUIET_AND_LIGHT = {
    "USE_TORCH": "0",  # transformers then leaves PyTorch alone: only its tokenizers are needed
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True)
class Installation:
    """The files of a Triton server that can run a Python backend with this Python."""

    version: str
    binary: Path
    libraries: Path
    python_backend: Path
    stub: Path

    def assemble(self, directory: Path) -> None:
        """Lay out under `directory` what Triton looks for: backends/python/ and lib/, as links."""
        backend = directory / "backends" / "python"
        backend.mkdir(parents=True)
        for file in (*self.python_backend.glob("*.so"), *self.python_backend.glob("*.py")):
            (backend / file.name).symlink_to(file)
        (backend / STUB_NAME).symlink_to(self.stub)
        libraries = directory / "lib"
        libraries.mkdir()
        own = _own_libpython()
        if own.is_file():  # before the system's, which may be another patch release
            (libraries / own.name).symlink_to(own)

    def environment(self, directory: Path) -> dict[str, str]:
        """Return the environment in which Triton finds its libraries, and its stub this Python."""
        return {
            **os.environ,
            **QUIET_AND_LIGHT,
            "PATH": _joined(Path(sys.executable).parent, os.environ.get("PATH", "")),
            "LD_LIBRARY_PATH": _joined(
                directory / "lib", self.libraries, os.environ.get("LD_LIBRARY_PATH", "")
            ),
            "PYTHONPATH": _joined(*(path for path in sys.path if path)),
        }


def find_installation() -> Installation:
    """Return the Triton server of this Python environment.

    Raises:
        ServerMissingError: the wheel is not installed, is incomplete or has no stub for this
            Python version, or this Python has no shared library for the stub to load.
    """
    try:
        wheel = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        raise ServerMissingError(
            f"no Triton server: the package {WHEEL!r} is not installed here. {INSTALL_HINT}"
        ) from None
    root = Path(str(wheel.locate_file("pytriton/tritonserver")))
    installation = Installation(
        version=wheel.version,
        binary=root / "bin" / "tritonserver",
        libraries=Path(str(wheel.locate_file("nvidia_pytriton.libs"))),
        python_backend=root / "backends" / "python",
        stub=root / "python_backend_stubs" / PYTHON / STUB_NAME,
    )
    _check_complete(installation)
    return installation


def _check_complete(installation: Installation) -> None:
    for path in (installation.binary, installation.python_backend):
        if not path.exists():
            raise ServerMissingError(f"no Triton server: {path} is missing. {INSTALL_HINT}")
    if not installation.stub.exists():
        known = sorted(path.name for path in installation.stub.parent.parent.glob("3.*"))
        raise ServerMissingError(
            f"{WHEEL} {installation.version} runs no Python {PYTHON} models; it has stubs for "
            f"{', '.join(known) or 'none'}. Use one of these Python versions."
        )
    if not _own_libpython().is_file() and not ctypes.util.find_library(f"python{PYTHON}"):
        raise ServerMissingError(
            f"Triton's Python stub needs {_own_libpython().name}, and this machine has none. "
            f"Install the shared library (on Debian and Ubuntu: libpython{PYTHON}), or use a "
            "Python that was built with --enable-shared."
        )


def _own_libpython() -> Path:
    """Return where this Python's shared library is, if it was built with one."""
    folder = sysconfig.get_config_var("LIBDIR") or ""
    return Path(folder) / f"libpython{PYTHON}.so.1.0"


def _joined(*paths: Path | str) -> str:
    return os.pathsep.join(str(path) for path in paths if str(path))
