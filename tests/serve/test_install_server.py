"""`bertender install-server`: all of Triton, or nothing, by pip from a folder of wheels."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bertender.core.errors import ServerMissingError
from bertender.core.machine import environment, server_folder
from serve.server import wheels
from serve.server.installation import find_installation, is_installed
from serve.server.wheels import PYTHON, TRITON, InstalledServer, Wheel, numpy_file, stub_file
from tests.front import fail, succeed
from tests.serve.machines import unlike

BINARY = TRITON / "bin/tritonserver"
CONTENT = {
    "nvidia-pytriton": {str(path): path.name for path in (*wheels.DIGESTS, stub_file(PYTHON))},
    "numpy": {str(numpy_file(PYTHON)): "arrays", "numpy/__init__.py": ""},
}


def write_wheel(wheel: Wheel, folder: Path, content: dict[str, str]) -> Path:
    name = wheel.name.replace("-", "_")
    file = folder / f"{name}-{wheel.version}-py3-none-any.whl"
    about = f"{name}-{wheel.version}.dist-info"
    described = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {wheel.name}\n"
        f"Version: {wheel.version}\nRequires-Dist: nothing-that-exists\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*content, *described, f"{about}/RECORD"))
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in {**content, **described, f"{about}/RECORD": record}.items():
            archive.writestr(path, text)
    return file


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with small wheels, which pip's own configuration names, and an environment that has
    no server yet."""
    folder = tmp_path / "index"
    folder.mkdir()
    small = []
    for wheel in wheels.WHEELS:
        file = write_wheel(wheel, folder, CONTENT[wheel.name])
        digests = (sha256(file.read_bytes()),)
        small.append(Wheel(wheel.name, wheel.version, wheel.size_mb, digests))
    triton = CONTENT["nvidia-pytriton"]
    expected = {path: sha256(triton[str(path)].encode()) for path in wheels.DIGESTS}
    of_python = wheels.ForPython(
        stub=sha256(triton[str(stub_file(PYTHON))].encode()),
        numpy=sha256(CONTENT["numpy"][str(numpy_file(PYTHON))].encode()),
    )
    monkeypatch.setattr(wheels, "WHEELS", tuple(small))
    monkeypatch.setattr(wheels, "DIGESTS", expected)
    monkeypatch.setattr(wheels, "PYTHONS", {PYTHON: of_python})
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environment"))
    pinned = tmp_path / "constraints.txt"
    pinned.write_text("numpy==2.3.0\n")
    for name, value in {"NO_INDEX": 1, "FIND_LINKS": folder, "CONSTRAINT": pinned}.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    return folder


def install() -> tuple[InstalledServer, list[str]]:
    said: list[str] = []
    return wheels.install_server(said.append), said


def assert_nothing_is_there() -> None:
    folder = server_folder().parent
    assert not folder.exists() or not list(folder.iterdir())


@pytest.mark.usefixtures("index")
def test_it_is_installed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what the wheels require, whatever the user's constraints say of NumPy."""
    assert not is_installed()
    result, said = install()
    assert result.changed and result.folder == str(server_folder()) and is_installed()
    recorded = environment.__wrapped__().versions  # the result of this process is kept
    assert recorded["nvidia-pytriton"] == "0.7.0" and result.version == "2.51.0"
    assert (server_folder() / numpy_file(PYTHON)).read_text() == "arrays"
    assert "73 MB to download" in said[0] and str(server_folder()) in said[0]
    assert "Apache-2.0" in said[1]
    monkeypatch.setattr(wheels.subprocess, "run", None)
    result, said = install()
    assert not result.changed and not said


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize("path", [BINARY, pytest.param(numpy_file(PYTHON), marks=pytest.mark.slow)])
def test_a_damaged_file_is_replaced(path: Path) -> None:
    install()
    (server_folder() / path).write_text("half of")
    result, said = install()
    assert result.changed and f"{path} in {server_folder()} is missing or damaged" in said[0]
    assert (server_folder() / path).read_text() != "half of"
    assert [each.name for each in server_folder().parent.iterdir()] == [server_folder().name]


def test_a_wheel_of_another_digest_is_refused_by_pip(index: Path) -> None:
    triton = wheels.WHEELS[0]
    write_wheel(triton, index, {**CONTENT[triton.name], str(BINARY): "another program"})
    with pytest.raises(ServerMissingError, match=r"(?s)nothing was kept.*DO NOT MATCH THE HASHES"):
        install()
    assert_nothing_is_there()


@pytest.mark.usefixtures("index")
def test_a_file_of_another_digest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "DIGESTS", {**wheels.DIGESTS, BINARY: "0" * 64})
    with pytest.raises(ServerMissingError, match=rf"^{BINARY} .*not the expected file"):
        install()
    assert_nothing_is_there()


@pytest.mark.usefixtures("index")
def test_an_interruption_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    run = wheels.subprocess.run

    def interrupted(*words: Any, **options: Any) -> None:
        run(*words, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(wheels.subprocess, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        install()
    assert_nothing_is_there()


def test_wheels_that_cannot_be_had_are_named_with_what_pip_said(index: Path) -> None:
    for file in index.iterdir():
        file.unlink()
    with pytest.raises(ServerMissingError, match="No matching distribution found for nv"):
        install()
    assert_nothing_is_there()


UV = f"""#!/bin/sh
[ "$1 $2 $3 $4" = "pip install --python {sys.executable}" ] || exit 9
shift 4
exec {sys.executable} -m pip install "$@"
"""


@pytest.mark.usefixtures("index")
def test_without_pip_uv_installs_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissingError, match=r"has no pip.* -m ensurepip`, or install uv"):
        install()
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    assert install()[0].changed


@pytest.mark.usefixtures("index")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "environment").write_text("no folder")
    with pytest.raises(ServerMissingError, match=r"may not write to .*/environment\."):
        install()


@pytest.mark.parametrize(
    ("unlikeness", "said"),
    [
        ({"python": "3.13"}, "Python 3.13"),
        ({"machine": "aarch64"}, "aarch64"),
        ({"system": "darwin"}, "x86-64 Linux"),
        ({"glibc": "glibc 2.34"}, "glibc 2.34"),
        ({"glibc": ""}, "glibc 2.35 or newer"),
    ],
)
def test_where_it_cannot_run_the_way_without_it_is_named(
    unlikeness: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    unlike(monkeypatch, tmp_path, **unlikeness)
    answer = fail("install-server")
    assert said in answer and "--server embedded, the default here" in answer
    assert_nothing_is_there()


@pytest.mark.usefixtures("index")
def test_the_command_says_what_it_does() -> None:
    done = succeed("install-server", "--json")
    assert json.loads(done.stdout)["changed"] and "MB to download" in done.stderr
    assert "is installed already" in succeed("install-server").stdout


@pytest.mark.server
def test_what_is_installed_here_is_what_the_table_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The genuine wheels, by pip from the registry."""
    monkeypatch.setattr(wheels.subprocess, "run", None)
    assert not wheels.install_server(print).changed
    size = sum(each.stat().st_size for each in server_folder().rglob("*") if each.is_file())
    assert abs(size / 1e6 - wheels.INSTALLED_MB) < 15
    assert find_installation().version == "2.51.0"
