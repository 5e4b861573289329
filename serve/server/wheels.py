"""`bertender install-server`: Triton and the NumPy of its Python stub, in a separate folder.

The Triton binary comes in the wheel of nvidia-pytriton. The wheel requires NumPy 1 for a Python
interface that is never imported here, and its stub, compiled for NumPy 1, crashes at its first
request with NumPy 2. So both wheels are installed without their requirements, outside of this
environment's packages, and only the stub uses that NumPy.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bertender.core.artifact import sha256_of
from bertender.core.config import Record
from bertender.core.errors import ServerMissingError
from bertender.core.files import replacing_directory, unusable_parent
from bertender.core.machine import SERVER_WHEEL, server_folder
from serve.server.supervisor import STUB_NAME

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
OLDEST_GLIBC = (2, 35)
EMBEDDED_HINT = (
    "`bertender serve` needs none: --server embedded, the default here, with any runtime but "
    "triton-onnxruntime."
)


@dataclass(frozen=True)
class Wheel:
    """An installed wheel, pinned by its digest."""

    name: str
    version: str
    size_mb: int
    sha256: tuple[str, ...]
    """Digest of the file, or of the file for each version in PYTHONS."""

    @property
    def requirement(self) -> str:
        """Line for a requirements file."""
        hashes = [f"--hash=sha256:{digest}" for digest in self.sha256]
        return " ".join([f"{self.name}=={self.version}", *hashes])


WHEELS = (
    Wheel(
        name=SERVER_WHEEL,
        version="0.7.0",
        size_mb=55,
        sha256=("21f063ff93bb426d0c06b7a55e7eb9efcfe62c0dddd9a908e9877e18710128df",),
    ),
    Wheel(
        name="numpy",
        version="1.26.4",
        size_mb=18,
        sha256=(
            "666dbfb6ec68962c033a450943ded891bed2d54e6755e35e5835d63f4f6931d5",
            "675d61ffbfa78604709862923189bad94014bef562cc35cf61d3a07bba02a7ed",
        ),
    ),
)
TRITON_VERSIONS = {"0.7.0": "2.51.0"}
"""Version of the server by version of the wheel, which does not state it."""
INSTALLED_MB = 225
SAID_LINES = 8
"""Number of lines of pip's output to show after a failure."""
LICENCES = (
    "licences: the wheel of nvidia-pytriton states Apache-2.0, and carries libraries of NVIDIA "
    "(CUDA runtime, DCGM) and of others under their own terms; NumPy states BSD-3-Clause"
)

TRITON = Path("pytriton/tritonserver")
LIBRARIES = Path("nvidia_pytriton.libs")
DIGESTS: Mapping[Path, str] = {
    TRITON / "bin/tritonserver": "01f1d4a777fea48f8e62a3df0403bcbd858c7a0be203e032a795032555f3e3f4",
    LIBRARIES / "libtritonserver-717102f0.so": (
        "ea04aab43d3ee859e73a4414d387c2b6317ef9d20ef32683211a84e9b54a19f9"
    ),
    TRITON / "backends/python/libtriton_python.so": (
        "08a47eb9cb120475442abebf283a910cf06053bc1322711aeb34f4d42f038cba"
    ),
    TRITON / "backends/python/triton_python_backend_utils.py": (
        "dcfbb2a8e115e6c47097ca59e395488c3a94c3cec416d9b89e20bf495ef8bab7"
    ),
}
"""SHA-256 of executed files, by path in `server_folder`."""


class ForPython(NamedTuple):
    """Digests of the executed files of a Python version."""

    stub: str
    numpy: str


PYTHONS: Mapping[str, ForPython] = {
    "3.11": ForPython(
        stub="a302adf6396501ac139da06f965aea1bf61929c99bf799f6b8797e071cd268f4",
        numpy="a735e4e8355b75c800112af8a5b1731b891b2016ed57067352eea6cab0aa00bc",
    ),
    "3.12": ForPython(
        stub="41a7758c6f44520b846e90a5bf8b063f99aee01698c3e32113ce352fe8369921",
        numpy="6a650810a8735cbdb988f74729973740a337645dd1585fef696e73e2dbc65beb",
    ),
}
"""Python versions with both a stub (3.8 to 3.13) and a wheel of NumPy 1."""


NUMPY_1 = b"numpy.core.multiarray"
"""Mark of stubs that were compiled for NumPy 1. They read arrays of NumPy 2 with strides of zero:
the server becomes ready, and crashes at the first request."""


def is_for_numpy_1(stub: Path) -> bool:
    """Return whether a stub was compiled for NumPy 1, and cannot read arrays of NumPy 2."""
    return NUMPY_1 in stub.read_bytes()


def stub_file(python: str) -> Path:
    """Return the path of the stub for a Python version, in `server_folder`."""
    return TRITON / "python_backend_stubs" / python / STUB_NAME


def numpy_file(python: str) -> Path:
    """Return the path of the library of NumPy for a Python version, in `server_folder`."""
    tag = f"cpython-{python.replace('.', '')}-x86_64-linux-gnu"
    return Path(f"numpy/core/_multiarray_umath.{tag}.so")


class InstalledServer(Record):
    """The result of `install_server`."""

    version: str
    """Of Triton."""
    folder: str
    changed: bool
    """Whether anything was installed; False if it was already complete."""


def why_not_here() -> str | None:
    """Return why the binary cannot run on this machine with this Python; None if it can."""
    glibc = _glibc()
    runs = (
        sys.platform == "linux"
        and platform.machine() == "x86_64"
        and PYTHON in PYTHONS
        and glibc >= OLDEST_GLIBC
    )
    if runs:
        return None
    own = f", glibc {'.'.join(map(str, glibc))}" if glibc else ""
    return (
        f"the binary of Triton is made for x86-64 Linux with glibc {OLDEST_GLIBC[0]}."
        f"{OLDEST_GLIBC[1]} or newer and Python {' or '.join(PYTHONS)}, and this is "
        f"{platform.system()} {platform.machine()}{own}, Python {PYTHON}"
    )


def install_server(say: Callable[[str], None]) -> InstalledServer:
    """Install Triton and the NumPy of its stub in `server_folder`, unless they are there.

    The folder appears atomically, replacing damaged or other versions. pip's configuration applies:
    indexes, proxies, certificates.

    Args:
        say: called with a line about each step.

    Raises:
        ServerMissingError: the binary cannot run here, there is neither pip nor uv, the wheels
            cannot be downloaded, the folder cannot be written, or a file has another digest.
    """
    if reason := why_not_here():
        raise ServerMissingError(f"{reason}. {EMBEDDED_HINT}")
    folder = server_folder()
    wheel = WHEELS[0]
    version = TRITON_VERSIONS[wheel.version]
    result = InstalledServer(version=version, folder=str(folder), changed=False)
    different = _differing(folder)
    if not different:
        return result
    program = _installer()
    if nearest := unusable_parent(folder):
        raise ServerMissingError(
            f"Triton cannot be installed in {folder}: this user may not write to {nearest}. Run "
            "the command as another user, or install bertender in your own virtual environment."
        )
    if folder.exists():
        say(f"{different[0]} in {folder} is missing or damaged: the folder is replaced")
    parts = " and ".join(f"{each.name} {each.version}" for each in WHEELS)
    say(
        f"Triton {version}: {parts}, {sum(each.size_mb for each in WHEELS)} MB to download, "
        f"{INSTALLED_MB} MB in {folder}. No other program sees them: this NumPy is for Triton's "
        "Python stub alone"
    )
    say(LICENCES)
    with replacing_directory(folder) as draft:
        _install(program, draft)
        if different := _differing(draft):
            raise ServerMissingError(
                f"{', '.join(different)} of the installed wheels is not the expected file, by its "
                "SHA-256. Nothing was kept. See where pip takes packages from: pip config list"
            )
    return result.model_copy(update={"changed": True})


def _differing(folder: Path) -> list[str]:
    """Return the paths of files in a folder that are missing or unexpected."""
    expected = {
        **DIGESTS,
        stub_file(PYTHON): PYTHONS[PYTHON].stub,
        numpy_file(PYTHON): PYTHONS[PYTHON].numpy,
    }
    return [
        str(path)
        for path, digest in expected.items()
        if not (folder / path).is_file() or sha256_of(folder / path) != digest
    ]


def _installer() -> list[str]:
    """Return the command of pip, or else uv, that installs packages for this Python."""
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--python", sys.executable]
    raise ServerMissingError(
        f"Triton is installed with pip or uv, and {sys.executable} has no pip, and there is no uv "
        f"in PATH. Run `{sys.executable} -m ensurepip`, or install uv, and run the command again."
    )


def _install(installer: Sequence[str], folder: Path) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as requirements:
        requirements.writelines(f"{wheel.requirement}\n" for wheel in WHEELS)
        requirements.flush()
        done = subprocess.run(
            [
                *installer,
                *("--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"),
                *("--target", str(folder), "-r", requirements.name),
            ],
            # the user's constraints are for this environment's packages
            env={**os.environ, "PIP_CONSTRAINT": os.devnull, "UV_CONSTRAINT": os.devnull},
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        raise ServerMissingError(
            f"{WHEELS[0].name} could not be installed, and nothing was kept. What "
            f"`{shlex.join(installer)}` said:\n" + "\n".join(said[-SAID_LINES:])
        )


def _glibc() -> tuple[int, ...]:
    """Return the version of glibc; an empty tuple for another C library."""
    try:
        name, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (AttributeError, OSError, ValueError):  # macOS, or musl
        return ()
    return tuple(map(int, version.split("."))) if name == "glibc" else ()
