"""The Triton binary is found in its wheel, or its absence explained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bertender.core.errors import ServerMissingError
from serve import installation
from serve.installation import find_installation

pytestmark = pytest.mark.server


def test_the_binary_runs_from_its_wheel(tmp_path: Path) -> None:
    found = find_installation()
    found.assemble(tmp_path)
    environment = found.environment(tmp_path)
    done = subprocess.run([found.binary, "--help"], env=environment, capture_output=True, text=True)
    assert "--model-repository" in done.stdout + done.stderr
    assert os.access(tmp_path / "backends" / "python" / "triton_python_backend_stub", os.X_OK)


def test_pytriton_is_never_imported() -> None:
    script = (
        "import sys, serve.server as s; s.find_installation(); print('pytriton' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_a_missing_wheel_comes_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "WHEEL", "no-such-wheel")
    with pytest.raises(ServerMissingError, match=r"pip install 'bertender\[server\]'"):
        find_installation()


def test_an_unsupported_python_is_told_the_supported_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "PYTHON", "3.99")
    with pytest.raises(ServerMissingError, match=r"no Python 3\.99 models; .* 3\.11, 3\.12"):
        find_installation()
