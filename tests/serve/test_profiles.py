"""Profiles of this machine: what `serve` takes from them, and what is wrong with one is named."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import bertender
from bertender.cli.doctor import Finding, findings
from bertender.core.artifact import Artifact
from bertender.core.files import CACHE_VARIABLE
from bertender.core.machine import environment
from bertender.models.runtimes import RUNTIMES
from serve.config import LocalServeConfig, ServeCommandConfig, ServeConfig
from serve.profiles import (
    MachineKey,
    ProfileKey,
    ServeProfile,
    TunedSettings,
    profile_folder,
    profile_path,
    read_profile,
    saved_profiles,
    with_profile,
    write_profile,
)
from serve.server.supervisor import STUB_NAME
from tests.front import last_line, succeed
from tests.serve.layouts import ENCODER_RUNTIME
from tests.served import ANY_PORTS

SETTINGS = TunedSettings(
    instances=2, threads_per_instance=3, concurrent_buckets=4, tokens_per_bucket=99
)
PARALLEL = {"instances": 2, "threads_per_instance": 3, "concurrent_buckets": 4}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))


def profile_of(key: ProfileKey, **changes: Any) -> ServeProfile:
    values = {"setting": "instances", "settings": SETTINGS, "reason": "it is", "conditions": {}}
    return ServeProfile(key=key, **{**values, "noisy": False, **changes})


@pytest.fixture
def key(onnx_artifact: Artifact) -> ProfileKey:
    return ProfileKey.of_card(onnx_artifact.card, "onnxruntime")


@pytest.fixture
def path(key: ProfileKey) -> Path:
    return write_profile(profile_of(key))


def test_it_is_read_back_and_lies_in_the_cache_folder(key: ProfileKey, tmp_path: Path) -> None:
    assert read_profile(key) is None
    path = write_profile(profile_of(key))
    assert path.parent == tmp_path / "cache" / "serve-profiles"
    assert read_profile(key) == profile_of(key)
    write_profile(profile_of(key, noisy=True))
    assert read_profile(key) == profile_of(key, noisy=True)
    assert [*path.parent.iterdir()] == [path], "nothing half-written is left"


DIFFERENT: dict[str, Callable[[Any], Any]] = {
    "cpu_model": lambda value: "another CPU",
    "cores": lambda value: value + 1,
    "runtime": lambda value: "openvino",
    "runtime_version": lambda value: "0.1",
    "gpu": lambda value: "H100",
    "family": lambda value: "distilbert",
    "precision": lambda value: "int8",
    "scheme": lambda value: "dynamic",
    "parameters": lambda value: value + 1,
}


def test_every_part_of_the_key_has_its_row(key: ProfileKey) -> None:
    assert DIFFERENT.keys() == {**dict(key.machine), **dict(key.model)}.keys()


def differing(key: ProfileKey, name: str) -> ProfileKey:
    part = "machine" if name in MachineKey.model_fields else "model"
    old = getattr(key, part)
    new = old.model_copy(update={name: DIFFERENT[name](getattr(old, name))})
    return key.model_copy(update={part: new})


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_machine_runtime_or_shape_has_another(
    name: str, key: ProfileKey, path: Path
) -> None:
    assert profile_path(differing(key, name)) != path
    assert read_profile(differing(key, name)) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_one_that_was_copied_from_elsewhere_is_named_and_ignored(
    name: str, key: ProfileKey, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = write_profile(profile_of(differing(key, name)))
    foreign.replace(path)
    assert read_profile(key) is None
    assert str(path) in caplog.text and "(here: " in caplog.text
    assert name.replace("_", " ") in caplog.text and "bertender tune" in caplog.text


BROKEN = {
    "empty": "",
    "cut off": '{"schema_version": 1, "key"',
    "of another version": '{"schema_version": 2}',
    "no object": "[]",
    "of an unknown runtime": None,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_one_is_named_and_ignored(
    name: str,
    key: ProfileKey,
    path: Path,
    onnx_artifact: Artifact,
    caplog: pytest.LogCaptureFixture,
) -> None:
    content = BROKEN[name]
    if content is None:
        content = path.read_text().replace("onnxruntime", "tensorrt")
    path.write_text(content)
    config, used = with_profile(LocalServeConfig(), [onnx_artifact.card])
    assert (config, used) == (LocalServeConfig(), None)
    assert f"{path} cannot be read" in caplog.text and "bertender tune" in caplog.text
    assert [where for where, each in saved_profiles() if isinstance(each, str)] == [path]


@pytest.mark.parametrize(
    ("explicit", "applied"),
    [
        ({}, {**PARALLEL, "tokens_per_bucket": 99}),
        ({"http_port": 0}, {**PARALLEL, "tokens_per_bucket": 99}),
        ({"tokens_per_bucket": 256}, {}),
        *(({name: 1}, {}) for name in PARALLEL),
        ({"instances": 1, "tokens_per_bucket": 64}, {}),
    ],
)
def test_what_is_explicit_stays(
    explicit: dict[str, int], applied: dict[str, int], path: Path, onnx_artifact: Artifact
) -> None:
    """Threads, copies and buckets were measured together; so they are taken together."""
    config, used = with_profile(LocalServeConfig.parse(explicit), [onnx_artifact.card])
    assert used is not None and dict(used.applied) == applied
    assert config == LocalServeConfig.parse({**explicit, **applied})
    assert str(path) in str(used) and all(f"{k}={v}" in str(used) for k, v in applied.items())
    assert bool(applied) != ("not used" in str(used))


@pytest.mark.parametrize("settings", [{"profile": False}, {"repository_only": "models"}])
def test_it_is_left_alone(settings: dict[str, Any], path: Path, onnx_artifact: Artifact) -> None:
    """A repository may be for another machine."""
    config = ServeCommandConfig.parse(settings)
    assert with_profile(config, [onnx_artifact.card]) == (config, None)


def test_several_models_share_the_machine_and_take_none(
    path: Path, onnx_artifact: Artifact
) -> None:
    config = LocalServeConfig()
    assert path.is_file() and with_profile(config, [onnx_artifact.card] * 2) == (config, None)


def test_a_backend_of_triton_takes_none(path: Path, onnx_artifact: Artifact) -> None:
    config = LocalServeConfig().changed({"runtime": ENCODER_RUNTIME})
    assert path.is_file() and with_profile(config, [onnx_artifact.card]) == (config, None)


def served_with(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> tuple[ServeConfig, str]:
    """Return the settings of the server that `bertender serve WORDS` starts, and what it prints."""
    started: list[ServeConfig] = []

    def ready(artifact: Artifact, config: ServeConfig, on_ready: Callable[[Any], None]) -> None:
        started.append(config)
        urls = {"http_url": "http://a", "metrics_url": "http://b"}
        on_ready(SimpleNamespace(models=("classifier",), config=config, **urls))

    monkeypatch.setattr("serve.server.server.serve_forever", ready)
    return (succeed("serve", *words).stdout, *started)[::-1]


def test_the_start_line_names_it(
    path: Path, onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, said = served_with(monkeypatch, onnx_artifact.path)
    assert (config.instances, config.tokens_per_bucket) == (2, 99)
    assert str(path) in "".join(said.split("\n")) and "--no-profile" in said
    config, said = served_with(monkeypatch, onnx_artifact.path, "--no-profile")
    assert config.instances == 1 and "profile" not in said
    _, said = served_with(monkeypatch, onnx_artifact.path, "--json")
    assert json.loads(said)["profile"] == str(path)


def test_one_of_a_busy_machine_says_so(
    key: ProfileKey, onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(profile_of(key, noisy=True))
    assert "chosen on a busy machine" in served_with(monkeypatch, onnx_artifact.path)[1]


def test_the_artifact_stays_as_it_was(onnx_artifact: Artifact, path: Path, tmp_path: Path) -> None:
    before = {file: file.stat().st_mtime_ns for file in onnx_artifact.path.rglob("*")}
    out = tmp_path / "models"
    assert succeed("serve", onnx_artifact.path, "--repository-only", out)
    assert "count: 1" in (out / "classifier" / "config.pbtxt").read_text()
    assert {file: file.stat().st_mtime_ns for file in onnx_artifact.path.rglob("*")} == before


def finding() -> Finding:
    (found,) = [each for each in findings(environment()) if each.name == "serve profiles"]
    return found


def test_the_doctor_shows_those_of_this_machine(key: ProfileKey) -> None:
    assert finding().value == "absent" and "bertender tune" in finding().meaning
    write_profile(profile_of(differing(key, "cores")))
    assert finding().value == "absent"
    write_profile(profile_of(key))
    assert finding().ok and "instances=2" in finding().value and "M parameters" in finding().value
    (profile_folder() / "more.json").write_text("{")
    assert not finding().ok and "more.json cannot be read" in finding().meaning
    shown = last_line(succeed("doctor", "--json"))
    assert finding().model_dump() in shown["findings"]


def test_a_runtime_that_is_not_installed_has_no_profile(
    onnx_artifact: Artifact, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert RUNTIMES["onnxruntime"].version
    with caplog.at_level(logging.WARNING):
        config = LocalServeConfig(runtime="openvino")
        assert with_profile(config, [onnx_artifact.card]) == (config, None)
    assert caplog.text == ""


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize(("settings", "copies"), [({}, 2), ({"profile": False}, 1)])
def test_a_server_runs_by_it(
    settings: dict[str, Any], copies: int, path: Path, onnx_artifact: Artifact
) -> None:
    with bertender.serve(onnx_artifact.path, **ANY_PORTS, **settings) as server:
        assert server.supervisor is not None
        family = psutil.Process(server.supervisor.pid).children(recursive=True)
        assert sum(STUB_NAME.startswith(each.name()[:15]) for each in family) == copies
