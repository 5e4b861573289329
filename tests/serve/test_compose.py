"""deploy/compose.yaml: what it names exists, and it is as locked down as the pod."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from bertender import __version__
from serve.probe import parse
from serve.server.server import END_TIMEOUT_S
from serve.server.workspace import needed_bytes
from tests.deployed import COMPOSE, compose_service, parsed_arguments
from tests.serve.test_dockerfile import DOCKERFILE, the

ENDPOINT = compose_service()
ARTIFACT, CONFIG = parsed_arguments(ENDPOINT["command"])
KEYS = {
    *("image", "build", "command", "ports", "volumes", "healthcheck", "restart", "user"),
    *("stop_grace_period", "read_only", "tmpfs", "shm_size", "mem_limit", "cap_drop"),
    "security_opt",
}
"""Of a service, as the specification of Compose names them."""


def seconds(text: str) -> int:
    assert text.endswith("s")
    return int(text[:-1])


def test_compose_reads_it() -> None:
    command = ["docker", "compose", "--file", str(COMPOSE), "config", "--quiet"]
    docker = shutil.which("docker")
    if (
        docker is None
        or subprocess.run([docker, "compose", "version"], capture_output=True).returncode
    ):
        pytest.skip("no Docker Compose here")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_it_has_fields_of_compose_alone() -> None:
    assert ENDPOINT.keys() == KEYS


def test_it_builds_the_image_of_the_dockerfile() -> None:
    assert ENDPOINT["image"] == f"bertender-serve:{__version__}"
    context = (COMPOSE.parent / ENDPOINT["build"]["context"]).resolve()
    assert context / ENDPOINT["build"]["dockerfile"] == DOCKERFILE


def test_other_machines_need_tls_and_a_key() -> None:
    assert CONFIG.host == "0.0.0.0" and CONFIG.api_keys and CONFIG.tls_certificate
    requests, metrics = ENDPOINT["ports"]
    assert requests == f"8443:{CONFIG.http_port}"
    assert metrics == f"127.0.0.1:{CONFIG.metrics_port}:{CONFIG.metrics_port}"


def test_its_files_are_mounted_read_only() -> None:
    mounted = [each.split(":") for each in ENDPOINT["volumes"]]
    assert all(mode == "ro" for _, _, mode in mounted)
    places = {Path(place): source for source, place, _ in mounted}
    files = (CONFIG.api_keys, CONFIG.tls_certificate, CONFIG.tls_key)
    assert places.keys() == {ARTIFACT, *(file.parent for file in files if file)}
    head = re.sub(r"\n# ?", " ", COMPOSE.read_text(encoding="utf-8"))
    assert all(f"`{source.removeprefix('./')}`" in head for source in places.values())


def test_its_probe_asks_that_server() -> None:
    check = ENDPOINT["healthcheck"]
    kind, *words = check["test"]
    assert (kind, words[:3]) == ("CMD", ["python", "-m", "serve.probe"])
    settings = parse(words[3:])
    assert settings.url == f"https://127.0.0.1:{CONFIG.http_port}"
    assert CONFIG.queue_timeout_ms / 1000 < settings.timeout_s < seconds(check["timeout"])
    assert seconds(check["start_period"]) >= CONFIG.ready_timeout_s


def test_it_is_locked_down_and_can_write_what_it_must() -> None:
    assert ENDPOINT["user"] == the("USER") and ENDPOINT["read_only"]
    assert ENDPOINT["cap_drop"] == ["ALL"]
    assert ENDPOINT["security_opt"] == ["no-new-privileges:true"]
    assert ENDPOINT["tmpfs"] == ["/tmp"]
    assert int(ENDPOINT["shm_size"].removesuffix("m")) * 2**20 >= 2 * needed_bytes(CONFIG, [2])
    assert ENDPOINT["mem_limit"] == "1g"
    assert seconds(ENDPOINT["stop_grace_period"]) >= END_TIMEOUT_S
