"""Finding a Triton server on this machine: from `bertender install-server`, or another one.

Another server, such as one with newer fixes, must be laid out as in NVIDIA's container:

    ROOT/bin/tritonserver            the path in the settings
    ROOT/lib/                        its libraries
    ROOT/backends/python/            the Python backend, with a stub for one Python version
    ROOT/TRITON_VERSION              a line such as 2.60.0
"""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import stat
import sys
import sysconfig
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from bertender.core.errors import ServerMissingError
from bertender.core.machine import server_folder, server_wheel_version
from serve.server.supervisor import STUB_NAME
from serve.server.wheels import (
    EMBEDDED_HINT,
    PYTHON,
    PYTHONS,
    TRITON,
    TRITON_VERSIONS,
    is_for_numpy_1,
    numpy_file,
    stub_file,
    why_not_here,
)
from serve.server.wheels import LIBRARIES as WHEEL_LIBRARIES

LAYOUT_HINT = (
    "Lay it out as in NVIDIA's container: ROOT/bin/tritonserver, ROOT/backends/python, ROOT/lib."
)
LIBPYTHON = re.compile(rb"libpython(3\.\d+)\.so")
INSTALL_HINT = "Install it with `bertender install-server`."
BACKENDS, LIBRARIES, PROGRAMS = "backends", "lib", "bin"
"""Folders relative to a server's workspace, since Triton and the loader split paths at spaces and
colons."""
SHELL = "bash"
"""The only name of a shell with which Triton's Python backend starts its stubs."""

QUIET_AND_LIGHT = {
    # transformers, if used for tokenising, does not load PyTorch
    "USE_TORCH": "0",
    "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1",
    "HF_HUB_OFFLINE": "1",
    # gRPC warns of each started process
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}


@dataclass(frozen=True)
class Installation:
    """The files of a Triton server with a Python backend for this Python."""

    version: str | None
    """Version of the server, if it is known."""
    binary: Path
    libraries: Path
    python_backend: Path
    stub: Path
    numpy: Path | None = None
    """Folder of the stub's own NumPy, in place of this environment's."""

    @property
    def backends(self) -> Path:
        """Folder of the backends."""
        return self.python_backend.parent

    def has_backend(self, name: str) -> bool:
        return (self.backends / name).is_dir()

    def assemble(self, directory: Path) -> None:
        """Link Triton's backends, libraries and shell in `directory`."""
        if self.stub.parent == self.python_backend:
            (directory / BACKENDS).symlink_to(self.backends)
        else:  # the wheel has the Python backend and its stubs in different folders
            backend = directory / BACKENDS / "python"
            backend.mkdir(parents=True)
            for file in (*self.python_backend.glob("*.so"), *self.python_backend.glob("*.py")):
                (backend / file.name).symlink_to(file)
            (backend / STUB_NAME).symlink_to(self.stub)
        programs = directory / PROGRAMS
        programs.mkdir()
        (programs / SHELL).symlink_to(_shell())
        libraries = directory / LIBRARIES
        libraries.mkdir()
        own = _own_libpython()
        if own.is_file():  # before the system's, possibly of another patch release
            (libraries / own.name).symlink_to(own)

    def environment(self) -> dict[str, str]:
        """Return the environment of a server that runs in the folder of `assemble`, in which it
        finds its libraries and a shell, and its stub this Python."""
        return {
            **os.environ,
            **QUIET_AND_LIGHT,
            "PATH": _joined(Path(sys.executable).parent, os.environ.get("PATH", ""), PROGRAMS),
            "LD_LIBRARY_PATH": _joined(
                LIBRARIES, self.libraries, os.environ.get("LD_LIBRARY_PATH", "")
            ),
            "PYTHONPATH": _joined(self.numpy or "", *(path for path in sys.path if path)),
        }


def find_installation(binary: Path | None = None) -> Installation:
    """Return the Triton server of a path, or of this Python environment.

    Raises:
        ServerMissingError: the server is missing, incomplete or has no stub for this Python
            version, this Python has no shared library for the stub, or the stub cannot read arrays
            of this NumPy.
    """
    installation = _installed() if binary is None else _of_path(binary)
    for path in (installation.binary, installation.python_backend):
        if not path.exists():
            hint = INSTALL_HINT if binary is None else LAYOUT_HINT
            raise ServerMissingError(f"no Triton server: {path} is missing. {hint}")
    _check_python(installation)
    _shell()
    return replace(installation, numpy=_numpy_of(installation.stub))


def is_installed() -> bool:
    """Return whether this Python environment has a server, even one that cannot run here."""
    return (server_folder() / TRITON).is_dir()


def _installed() -> Installation:
    if not is_installed():
        reason = why_not_here()
        raise ServerMissingError(
            f"no Triton server: {reason}. {EMBEDDED_HINT}"
            if reason
            else f"no Triton server in {server_folder()}. {INSTALL_HINT}"
        )
    root = server_folder() / TRITON
    return Installation(
        version=TRITON_VERSIONS.get(server_wheel_version() or ""),
        binary=root / "bin" / "tritonserver",
        libraries=server_folder() / WHEEL_LIBRARIES,
        python_backend=root / "backends" / "python",
        stub=server_folder() / stub_file(PYTHON),
    )


def _of_path(binary: Path) -> Installation:
    root = binary.absolute().parent.parent
    version = root / "TRITON_VERSION"
    return Installation(
        version=version.read_text(encoding="utf-8").strip() if version.is_file() else None,
        binary=binary.absolute(),
        libraries=root / "lib",
        python_backend=root / "backends" / "python",
        stub=root / "backends" / "python" / STUB_NAME,
    )


def _check_python(installation: Installation) -> None:
    # versions with a stub: from the wheel's folders, else from the library that the stub loads
    stubs = installation.stub.parent.parent.glob(f"3.*/{STUB_NAME}")
    known = sorted(path.parent.name for path in stubs)
    if not known and installation.stub.is_file():
        loaded = LIBPYTHON.findall(installation.stub.read_bytes())
        known = sorted({version.decode() for version in loaded})
    if PYTHON not in known:
        raise ServerMissingError(
            f"{installation.binary} cannot run Python {PYTHON} models; it has stubs for "
            f"{', '.join(known) or 'none'}. Use one of these Python versions."
        )
    if not os.access(installation.stub, os.R_OK | os.X_OK):
        mode = stat.S_IMODE(installation.stub.stat().st_mode)
        raise ServerMissingError(
            f"{installation.stub} has the mode {mode:o}, so that this user cannot run it: Triton "
            "removes rights after a failed start. Restore them, as its owner: chmod 755 "
            f"{installation.stub}"
        )
    if not _own_libpython().is_file() and not ctypes.util.find_library(f"python{PYTHON}"):
        raise ServerMissingError(
            f"Triton's Python stub needs {_own_libpython().name}, and this machine has none. "
            f"Install the shared library (on Debian and Ubuntu: libpython{PYTHON}), or use a "
            "Python that was built with --enable-shared."
        )


def _numpy_of(stub: Path) -> Path | None:
    """Return the folder of a stub's NumPy; None for this environment's."""
    if not is_for_numpy_1(stub):
        return None
    if (server_folder() / numpy_file(PYTHON)).is_file():
        return server_folder()
    numpy = metadata.version("numpy")
    if numpy.startswith("1."):
        return None
    raise ServerMissingError(
        f"{stub} was compiled for NumPy 1, and crashes at its first request with numpy {numpy}. "
        + (
            "`bertender install-server` installs a NumPy 1 for it; or use a newer server."
            if PYTHON in PYTHONS
            else f"Use a newer server, or Python {' or '.join(PYTHONS)}."
        )
    )


def _shell() -> str:
    """Return the shell of this machine: bash, or else sh."""
    if found := shutil.which(SHELL) or shutil.which("sh"):
        return found
    raise ServerMissingError(
        "Triton starts its Python processes with a shell, and there is neither bash nor sh in PATH "
        f"({os.environ.get('PATH', '')}). Add one of them."
    )


def _own_libpython() -> Path:
    """Return the path of this Python's shared library, if it has one."""
    folder = sysconfig.get_config_var("LIBDIR") or ""
    return Path(folder) / f"libpython{PYTHON}.so.1.0"


def _joined(*paths: Path | str) -> str:
    return os.pathsep.join(str(path) for path in paths if str(path))
