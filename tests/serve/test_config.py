"""Conflicts of the settings of `serve`: none is read and then unused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from serve.config import (
    MODEL_SETTINGS,
    REQUEST_SETTINGS,
    RULES,
    SERVER_SETTINGS,
    ServeCommandConfig,
    ServeConfig,
)
from serve.repository.config_pbtxt import model_config

REPOSITORY_SETTINGS = (*REQUEST_SETTINGS, *MODEL_SETTINGS)
OF_THE_ENCODER = {"gpu"}
"""What is refused but for a runtime whose graph is another Triton model, and is in that alone: see
test_triton_onnxruntime.py."""
TLS = ("tls_certificate", "tls_key")
PAIRS = (TLS, ("triton", "triton_token_file"))
"""Settings that need each other."""
FIELDS = sorted(ServeConfig.model_fields.keys() - OF_THE_ENCODER)
OTHER_VALUES = {
    **dict.fromkeys(("host", "metrics_host"), "127.0.0.2"),
    "tritonserver": "/opt/tritonserver/bin/tritonserver",
    "max_length": 64,
    "max_queue_texts": 5,
    "admin_token_file": "token",
    "log_file": "server.log",
    "runtime": "openvino",
    "gpu": True,
    "restart": False,
    "server": "triton",
    "allow_origin": "https://example.com",
    "otlp_endpoint": "http://127.0.0.1:4318",
    **dict.fromkeys(("access_log", "api_keys"), "a file"),
    **dict.fromkeys(TLS, "a file"),
    "triton": "http://127.0.0.1:8004",
    "triton_token_file": "token",
}
"""For those that no number can be added to."""


def other_value(name: str) -> Any:
    """Return an allowed value of a setting that is not its default."""
    default = ServeConfig.model_fields[name].default
    return OTHER_VALUES[name] if name in OTHER_VALUES else default + 10 if default else 1


@pytest.mark.parametrize("name", FIELDS)
def test_a_repository_takes_every_setting_or_refuses_it(
    name: str, onnx_artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting changes what is written, or it is a row of the table and refused by its name."""
    monkeypatch.setattr("serve.config.is_installed", lambda: True)
    pair = next((each for each in PAIRS if name in each), (name,))
    values = {each: other_value(each) for each in pair}
    assert ServeConfig.parse(values) != ServeConfig()
    repository = {**values, "repository_only": "models"}
    if name in SERVER_SETTINGS:
        with pytest.raises(ConfigError, match=f"repository_only=models and .*{name}=.*starts no"):
            ServeCommandConfig.parse(repository)
        return
    written = model_config(onnx_artifact.card, ServeCommandConfig.parse(repository))
    assert written != model_config(onnx_artifact.card, ServeConfig())


def test_the_table_has_settings_only() -> None:
    assert set(FIELDS) > SERVER_SETTINGS


def test_all_of_them_are_named_at_once() -> None:
    values = {"repository_only": "models", "restart": True, "http_port": 9000}
    with pytest.raises(ConfigError, match=r"http_port=9000, restart=True: .*Leave them out"):
        ServeCommandConfig.parse(values)


def test_a_host_of_a_server_that_is_not_started_exposes_nothing() -> None:
    with pytest.raises(ConfigError, match=r"repository_only=models and host=0\.0\.0\.0"):
        ServeCommandConfig.parse({"repository_only": "models", "host": "0.0.0.0"})


@pytest.mark.parametrize("server", [{}, {"server": "embedded"}], ids=str)
@pytest.mark.parametrize("name", ["queue_delay_us", "log_max_mb"])
def test_what_triton_alone_reads_is_refused_where_the_embedded_server_runs(
    name: str, server: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serve.config.is_installed", lambda: False)
    values = {name: other_value(name), **server}
    with pytest.raises(ConfigError, match=f"{name}=.*only Triton reads that.*--server triton"):
        ServeConfig.parse(values)
    assert ServeConfig.parse({**values, "server": "triton"})


def test_a_repository_for_a_triton_elsewhere_has_its_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("serve.config.is_installed", lambda: False)
    assert ServeCommandConfig.parse({"queue_delay_us": 500, "repository_only": "models"})


@pytest.mark.parametrize("name", [*REPOSITORY_SETTINGS, "profile"])
def test_a_triton_that_something_else_starts_has_its_own_settings(name: str) -> None:
    values = {name: "tuned.json" if name == "profile" else other_value(name)}
    values["triton"] = "http://127.0.0.1:8004"
    with pytest.raises(ConfigError, match=f"triton=http.* and {name}=.*--repository-only"):
        ServeCommandConfig.parse(values)


def test_a_repository_or_a_server_has_each_setting() -> None:
    assert SERVER_SETTINGS.isdisjoint(REPOSITORY_SETTINGS)
    assert ServeConfig.model_fields.keys() == {*SERVER_SETTINGS, *REPOSITORY_SETTINGS}


def test_without_a_repository_the_rules_are_those_of_a_server() -> None:
    assert ServeCommandConfig.all_rules().keys() > RULES.keys()
    assert ServeCommandConfig.parse({"restart": True}).repository_only is None
    with pytest.raises(ConfigError, match="the ports must differ"):
        ServeCommandConfig.parse({"grpc_port": 8000})
    own = ServeConfig(metrics_port=8000, metrics_host="127.0.0.2")
    assert own.http_port == 8000, "another address"


def test_the_folder_is_a_path() -> None:
    config = ServeCommandConfig.parse({"repository_only": "models"})
    assert config.repository_only == Path("models")
