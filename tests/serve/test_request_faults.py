"""Single requests that older servers fall to: named, and kept away from other machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertender.cli.doctor import findings
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.core.machine import environment
from serve.config import ServeConfig
from serve.server.advisories import REQUEST_FAULTS, WITHOUT_FAULTS, faults_of, named
from tests.front import last_line, succeed
from tests.serve.layouts import lay_out

EVERY = ("http", "grpc")


@pytest.mark.parametrize("version", ["2.51.0", "2.68.9", "2.9.0", "2.69.0dev", None, "unknown"])
def test_an_old_or_unknown_server_has_all_of_them(version: str | None) -> None:
    assert faults_of(version, *EVERY) == REQUEST_FAULTS
    assert len(faults_of(version, "http")) == len(REQUEST_FAULTS) - 1


@pytest.mark.parametrize("version", [WITHOUT_FAULTS, "2.69.1", "2.100.0", "3.0.0"])
def test_a_newer_one_has_none(version: str) -> None:
    assert faults_of(version, *EVERY) == () and named(version, grpc=True) is None


def test_cancelled_requests_are_named_where_grpc_is_on() -> None:
    assert "cancelled" in str(named("2.51.0", grpc=True))
    assert "cancelled" not in str(named("2.51.0", grpc=False))


@pytest.mark.server
@pytest.mark.parametrize("behind_proxy", [False, True])
@pytest.mark.parametrize("host", ["0.0.0.0", "198.51.100.7"])
def test_other_machines_do_not_reach_the_bundled_server(host: str, behind_proxy: bool) -> None:
    with pytest.raises(ConfigError) as refused:
        ServeConfig.parse({"host": host, "behind_proxy": behind_proxy})
    words = str(refused.value)
    assert f"host={host}" in words and "Triton 2.51.0" in words
    assert "--tritonserver" in words and "127.0.0.1" in words
    assert ("--behind-proxy does not change that" in words) is behind_proxy


@pytest.mark.server
@pytest.mark.parametrize("version", ["2.51.0", "2.68.0", None])
def test_nor_another_one_that_is_old_or_unknown(version: str | None, tmp_path: Path) -> None:
    older = lay_out(tmp_path / "older", version)
    settings = {"host": "0.0.0.0", "behind_proxy": True, "tritonserver": older}
    with pytest.raises(ConfigError, match=f"Triton {version or 'without TRITON_VERSION'}"):
        ServeConfig.parse(settings)


@pytest.mark.server
def test_a_newer_one_is_reached_through_a_proxy(tmp_path: Path) -> None:
    newer = lay_out(tmp_path / "newer", WITHOUT_FAULTS)
    settings = {"host": "0.0.0.0", "behind_proxy": True, "tritonserver": newer}
    assert ServeConfig.parse(settings).host == "0.0.0.0"


@pytest.mark.server
@pytest.mark.parametrize("has_grpc", [False, True])
def test_the_start_names_them(
    has_grpc: bool, onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ready(artifact: Artifact, config: ServeConfig, on_ready: Callable[[Any], None]) -> None:
        urls = {"http_url": "http://a", "grpc_url": "grpc://a", "metrics_url": "http://b"}
        on_ready(SimpleNamespace(models=("classifier",), config=config, **urls))

    monkeypatch.setattr("serve.server.server.serve_forever", ready)
    port = ("--grpc-port", "0") if has_grpc else ()
    result = succeed("serve", onnx_artifact.path, *port, "--json")
    shown = " ".join(result.stderr.split())
    faults = faults_of("2.51.0", *(EVERY if has_grpc else EVERY[:1]))
    assert [each for each in REQUEST_FAULTS if each.request in shown] == list(faults)
    assert last_line(result)["grpc"] == ("grpc://a" if has_grpc else None)


@pytest.mark.server
def test_the_doctor_names_them() -> None:
    (found,) = [each for each in findings(environment()) if each.name == "Triton requests"]
    assert not found.ok and all(each.request in found.meaning for each in REQUEST_FAULTS)
