"""The unit for systemd: its options are known and strict, and its command serves as it is written.

No systemd runs here: the credentials lie where the unit's %d leads in the test.
"""

from __future__ import annotations

import re
import shlex
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bertender.core.artifact import Artifact
from serve.door.callers import digest
from tests.deployed import DEPLOY, parsed_arguments
from tests.serve.certificates import KEY, SECRET, make_certificate

UNIT = (DEPLOY / "systemd" / "bertender.service").read_text(encoding="utf-8")
COMMAND = Path(sys.executable).with_name("bertender")
OPT = "/opt/bertender"
MOST_EXPOSURE = 20
"""Of 100, as systemd-analyze counts; a service without any options has 96."""


def of_unit(name: str) -> list[str]:
    """Return the values of an option."""
    lines = UNIT.replace("\\\n", "").splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{name}=")]


@pytest.mark.parametrize(
    "words", [("verify",), ("security", "--offline=true", f"--threshold={MOST_EXPOSURE}")]
)
def test_systemd_finds_no_fault(words: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    unit = tmp_path / "bertender.service"
    unit.write_text(UNIT.replace(f"{OPT}/bin/bertender", str(COMMAND)))
    ran = subprocess.run(
        ["systemd-analyze", "--no-pager", *words, str(unit)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert unit.name not in ran.stderr  # a line about an unknown option is no error to it


def test_the_unit_restarts_and_has_no_user_of_its_own() -> None:
    assert of_unit("Restart") == ["on-failure"]
    assert of_unit("DynamicUser") == ["yes"]
    (command,) = of_unit("ExecStart")
    credentials = [each.partition(":")[0] for each in of_unit("LoadCredential")]
    assert sorted(re.findall(r"%d/(\S+)", command)) == sorted(credentials)


def test_metrics_are_for_this_machine() -> None:
    (command,) = of_unit("ExecStart")
    _, config = parsed_arguments(shlex.split(command)[2:])
    assert config.host == "0.0.0.0" and config.metrics_host == "127.0.0.1"


@pytest.mark.server
def test_the_command_serves(onnx_artifact: Artifact, tmp_path: Path) -> None:
    certificate, _ = make_certificate(tmp_path)
    (tmp_path / "api-keys").write_text(f"me {digest(SECRET)}\n")
    (command,) = of_unit("ExecStart")
    program, *words = shlex.split(command.replace("%d", str(tmp_path)))
    assert program == f"{OPT}/bin/bertender"
    words = [word.replace(f"{OPT}/model", str(onnx_artifact.path)) for word in words]
    here = ("--host=127.0.0.1", "--http-port=0", "--metrics-port=0", "--threads-per-instance=1")
    with subprocess.Popen(
        [str(COMMAND), *words, *here], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            ready = (re.search(r"ready at (https://\S+?)[; ]", line) for line in server.stdout)
            found = next(match for match in ready if match)
            url = f"{found[1]}/v2/models/classifier"
            context = ssl.create_default_context(cafile=str(certificate))
            asked = urllib.request.Request(url, headers={"authorization": KEY})
            with urllib.request.urlopen(asked, timeout=10, context=context) as response:
                assert response.status == 200
            with pytest.raises(urllib.error.HTTPError, match="401"):
                urllib.request.urlopen(url, timeout=10, context=context)
        finally:
            server.terminate()
            server.communicate(timeout=30)
    assert server.returncode == 0, "else systemd starts it again"
