"""Profiles: what `serve` takes from a file of `tune`, and what it says of another machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import bertender
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from serve.config import LocalServeConfig, ServeConfig
from serve.profiles import MachineKey, ModelShape, ServeProfile, TunedSettings, with_profile
from serve.server.supervisor import STUB_NAME
from tests.front import fail, succeed
from tests.serve.processes import family_of
from tests.served import ANY_PORTS

TUNED = {
    "runtime": "onnxruntime",
    "instances": 2,
    "threads_per_instance": 3,
    "concurrent_buckets": 4,
    "tokens_per_bucket": 99,
}


@pytest.fixture
def profile(onnx_artifact: Artifact) -> ServeProfile:
    """One that was measured here."""
    return ServeProfile(
        settings=TunedSettings(**TUNED),
        machine=MachineKey.of_this_machine(ServeConfig()),
        model=ModelShape.of_card(onnx_artifact.card),
        noisy=False,
    )


@pytest.fixture
def path(profile: ServeProfile, tmp_path: Path) -> Path:
    return write(profile, tmp_path)


def write(profile: ServeProfile, folder: Path, **more: Any) -> Path:
    """Write a profile, among figures that `serve` does not read."""
    path = folder / "tuned.json"
    path.write_text(json.dumps({**profile.model_dump(mode="json"), "tried": [], **more}))
    return path


@pytest.mark.parametrize(
    "explicit",
    [{}, {"http_port": 0}, {"tokens_per_bucket": 256}, {"instances": 1, "runtime": "onnxruntime"}],
)
def test_what_is_explicit_stays(
    explicit: dict[str, Any], path: Path, onnx_artifact: Artifact, caplog: pytest.LogCaptureFixture
) -> None:
    values = {**explicit, "profile": path}
    config, said = with_profile(LocalServeConfig.parse(values), [onnx_artifact.card])
    taken = {name: value for name, value in TUNED.items() if name not in explicit}
    assert config == LocalServeConfig.parse({**values, **taken})
    assert said == f"profile {path}: " + ", ".join(f"{k}={v}" for k, v in taken.items())
    assert caplog.text == "", "it was measured on this machine"


def test_nothing_is_taken_that_nobody_named(onnx_artifact: Artifact) -> None:
    config = LocalServeConfig()
    assert with_profile(config, [onnx_artifact.card]) == (config, "")


DIFFERENT: Mapping[str, Callable[[Any], Any]] = {
    "cpu_model": lambda value: "another CPU",
    "cores": lambda value: value + 1,
    "server": lambda value: "triton 1.0.0",
    "runtime": lambda value: "openvino",
    "runtime_version": lambda value: "0.1",
    "gpu": lambda value: "H100",
    "family": lambda value: "distilbert",
    "precision": lambda value: "int8",
    "scheme": lambda value: "dynamic",
    "parameters": lambda value: value + 1,
}


def test_every_condition_has_its_row() -> None:
    assert DIFFERENT.keys() == MachineKey.model_fields.keys() | ModelShape.model_fields.keys()


@pytest.mark.parametrize("name", DIFFERENT)
def test_another_machine_runtime_or_shape_is_a_warning(
    name: str,
    profile: ServeProfile,
    onnx_artifact: Artifact,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    part = "machine" if name in MachineKey.model_fields else "model"
    values = profile.model_dump(mode="json")
    values[part][name] = DIFFERENT[name](values[part][name])
    path = write(ServeProfile.model_validate(values), tmp_path)
    config, _ = with_profile(LocalServeConfig(profile=path), [onnx_artifact.card])
    assert config.instances == 2
    assert f"{path} was measured on another machine" in caplog.text and "(here: " in caplog.text
    assert name.replace("_", " ") in caplog.text and "bertender tune" in caplog.text


def test_the_server_has_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.config.is_installed", lambda: True)
    for version, server in (("2.51.0", "triton 2.51.0"), (None, "triton of unknown version")):
        found = SimpleNamespace(version=version)
        monkeypatch.setattr("serve.profiles.find_installation", lambda binary, found=found: found)
        assert MachineKey.of_this_machine(ServeConfig()).server == server
    assert MachineKey.of_this_machine(ServeConfig(server="embedded")).server == "embedded"
    monkeypatch.setattr("serve.config.is_installed", lambda: False)
    assert MachineKey.of_this_machine(ServeConfig()).server == "embedded"


BROKEN = {
    "missing": (None, "No such file"),
    "empty": ("", "EOF"),
    "cut off": ('{"settings": {"instances"', "EOF"),
    "another file": ('{"config": {}}', "settings: Field required"),
    "an unknown setting": ('{"settings": {"copies": 2}}', "settings.copies: Extra inputs"),
    "an unknown runtime": ('{"settings": {"runtime": "tensorrt"}}', "no runtime 'tensorrt'"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_without_a_profile_is_named(
    name: str, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    content, reason = BROKEN[name]
    path = tmp_path / "tuned.json"
    if content is not None:
        path.write_text(content)
    said = fail("serve", onnx_artifact.path, "--profile", path)
    assert f"profile={path} cannot be read" in said and reason in said
    assert "bertender tune ARTIFACT --out FILE" in said


def test_a_value_that_no_option_may_have_is_refused(path: Path, onnx_artifact: Artifact) -> None:
    path.write_text(path.read_text().replace('"instances": 2', '"instances": 0'))
    with pytest.raises(ConfigError, match="instances=0"):
        with_profile(LocalServeConfig(profile=path), [onnx_artifact.card])


def served_with(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> tuple[ServeConfig, Any]:
    """Return the settings of the server that `bertender serve WORDS` starts, and the result."""
    started: list[ServeConfig] = []

    def ready(artifact: Artifact, config: ServeConfig, on_ready: Callable[[Any], None]) -> None:
        started.append(config)
        urls = {"http_url": "http://a", "metrics_url": "http://b"}
        on_ready(SimpleNamespace(models=("classifier",), config=config, **urls))

    monkeypatch.setattr("serve.server.server.serve_forever", ready)
    return (succeed("serve", *words), *started)[::-1]


def test_the_command_says_what_it_takes(
    path: Path, onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = (onnx_artifact.path, "--profile", path, "--instances", "1")
    config, result = served_with(monkeypatch, *words)
    assert (config.instances, config.tokens_per_bucket) == (1, 99)
    said = "".join(result.stderr.split("\n"))
    assert f"profile {path}: runtime=onnxruntime, threads_per_instance=3, " in said
    config, result = served_with(monkeypatch, onnx_artifact.path)
    assert config.instances == 1 and "profile" not in result.output
    _, result = served_with(monkeypatch, *words, "--json")
    assert json.loads(result.stdout)["profile"] == str(path)


def test_one_of_a_busy_machine_says_so(
    profile: ServeProfile, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    path = write(profile, tmp_path, noisy=True)
    _, said = with_profile(LocalServeConfig(profile=path), [onnx_artifact.card])
    assert "measured on a busy machine" in said


def test_a_repository_has_its_settings(
    path: Path, onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.check.try_repository", lambda repository, config: None)
    words = ("serve", onnx_artifact.path, "--repository-only", tmp_path / "models")
    succeed(*words, "--profile", path)
    assert "count: 2" in (tmp_path / "models" / "classifier" / "config.pbtxt").read_text()
    succeed(*words)
    assert "count: 1" in (tmp_path / "models" / "classifier" / "config.pbtxt").read_text()


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.parametrize("copies", [2, 1])
def test_a_server_runs_by_it(copies: int, path: Path, onnx_artifact: Artifact) -> None:
    settings = {"profile": path} if copies == 2 else {}
    with bertender.serve(onnx_artifact.path, **ANY_PORTS, **settings) as server:
        names = [each.name() for each in family_of(server)]
        assert names.count(STUB_NAME) == copies
