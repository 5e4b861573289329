"""The Triton binary is found where it was installed, or its absence explained."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ModelError, ServerMissingError
from bertender.core.machine import server_folder
from bertender.models.classifier import Classifier
from serve.backend.model import check_numpy
from serve.client.endpoint import classify
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.server import installation
from serve.server.installation import find_installation
from serve.server.server import Server
from serve.server.supervisor import STUB_NAME
from serve.server.wheels import NUMPY_1, PYTHON, numpy_file
from tests.serve.layouts import lay_out
from tests.serve.machines import unlike
from tests.serve.processes import stub_of, triton_of
from tests.served import ANY_PORTS

pytestmark = pytest.mark.server


def test_the_binary_runs_from_its_folder(tmp_path: Path) -> None:
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


def test_a_missing_server_comes_with_the_way_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(ServerMissingError, match=rf"in {tmp_path}.*`bertender install-server`"):
        find_installation()


@pytest.mark.parametrize(
    ("machine", "python", "glibc"),
    [("aarch64", "3.11", "glibc 2.36"), ("x86_64", "3.13", "glibc 2.36"), ("x86_64", "3.11", "")],
)
def test_a_machine_that_it_cannot_run_on_is_told_that_it_needs_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, machine: str, python: str, glibc: str
) -> None:
    unlike(monkeypatch, tmp_path, machine=machine, python=python, glibc=glibc)
    with pytest.raises(ServerMissingError, match=r"and this is .*--server embedded") as missing:
        find_installation()
    assert "install-server" not in str(missing.value)


def test_an_unsupported_python_is_told_the_supported_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PYTHON", "3.99")
    with pytest.raises(
        ServerMissingError, match=r"cannot run Python 3\.99 models; .* 3\.11, 3\.12"
    ):
        find_installation()


def test_a_stub_for_numpy_1_has_one_of_its_own_in_front(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = lay_out(tmp_path / "other", "2.99.0")
    own = str(server_folder())
    for found in (find_installation(), find_installation(other)):
        assert found.environment()["PYTHONPATH"].split(os.pathsep) == [own, *filter(None, sys.path)]
    monkeypatch.setattr(sys, "prefix", str(tmp_path))  # where there is none
    monkeypatch.setattr(metadata, "version", lambda name: "1.26.4")
    assert find_installation(other).numpy is None
    monkeypatch.setattr(metadata, "version", lambda name: "2.4.0")
    with pytest.raises(ServerMissingError, match=r"with numpy 2\.4\.0.*`bertender install-server`"):
        find_installation(other)


def test_a_stub_for_numpy_2_has_that_of_this_environment(tmp_path: Path) -> None:
    other = lay_out(tmp_path / "other", "2.99.0")
    stub = tmp_path / "other/backends/python" / STUB_NAME
    content = stub.read_bytes().replace(NUMPY_1, b"numpy._core.multiarray")
    stub.unlink()
    stub.write_bytes(content)
    stub.chmod(0o755)
    found = find_installation(other)
    assert found.numpy is None
    assert found.environment()["PYTHONPATH"] == os.pathsep.join(filter(None, sys.path))


def test_a_triton_of_the_user_whose_stub_cannot_read_arrays_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub = find_installation().stub
    monkeypatch.setattr(np, "__version__", "1.26.4")
    check_numpy(stub)
    monkeypatch.setattr(np, "__version__", "2.4.0")
    check_numpy(Path(sys.executable))
    with pytest.raises(ModelError, match=r"with numpy 2\.4\.0\. Install 'numpy<2'"):
        check_numpy(stub)


def test_the_running_stub_has_loaded_that_numpy_alone(engines: Callable[[str], Server]) -> None:
    server = engines("triton")
    stub = stub_of(server)
    loaded = {each.path for each in stub.memory_maps() if "_multiarray_umath" in each.path}
    assert loaded == {str((server_folder() / numpy_file(PYTHON)).resolve())}


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


def test_the_version_of_the_installed_server_is_known() -> None:
    assert find_installation().version == "2.51.0"


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
    stub = tmp_path / "other/backends/python" / STUB_NAME
    stub.unlink()
    stub.write_bytes(b"\0libpython3.14.so.1.0\0")
    with pytest.raises(
        ServerMissingError, match=r"cannot run Python 3\.1\d models.* stubs for 3\.14"
    ):
        find_installation(binary)
