"""Several models on one server: named on the command line, each with a queue of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertender.cli.serving import models_by_name
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ServingError
from bertender.models.classifier import open_classifier
from serve.client.endpoint import AsyncEndpoint, Endpoint
from serve.client.protocols import PROTOCOLS
from serve.config import ServeConfig
from serve.probe import main as probe
from serve.repository import check_name, is_repository, model_names, write_repository
from serve.server.server import Server
from tests.front import last_line, succeed
from tests.serve.scraped import scrape_until
from tests.served import PORTS


@pytest.mark.parametrize(
    ("words", "models"),
    [
        (["mine/int8"], {"classifier": "mine/int8"}),
        (["a=mine/int8", "b-2=other"], {"a": "mine/int8", "b-2": "other"}),
        (["mine/int8", "b=other"], {"classifier": "mine/int8", "b": "other"}),
        (["a=b=c"], {"a": "b=c"}),
        (["runs/seed=1"], {"classifier": "runs/seed=1"}),
    ],
)
def test_a_command_line_names_models(words: list[str], models: dict[str, str]) -> None:
    assert models_by_name(words) == models


def test_a_folder_with_an_equals_sign_is_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "seed=1").mkdir()
    monkeypatch.chdir(tmp_path)
    assert models_by_name(["seed=1"]) == {"classifier": "seed=1"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["a=x", "a=y"], "called 'a' already, x"),
        (["x", "y"], "called 'classifier' already"),
        (["=x"], "'' is no name of a model"),
        (["1a=x"], "'1a' is no name of a model"),
        (["a.b=x"], "begins with a letter"),
        (["a-candidate=x"], "for what `bertender deploy` tries"),
    ],
)
def test_a_name_that_cannot_be_is_refused(words: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        models_by_name(words)


def test_names_have_a_length() -> None:
    assert check_name("a" * 64)
    with pytest.raises(ConfigError, match="at most 64"):
        check_name("a" * 65)


@pytest.fixture(scope="module")
def several(
    onnx_artifact: Artifact, pair_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    models = {"single": onnx_artifact, "pairs": pair_artifact}
    repository = write_repository(models, tmp_path_factory.mktemp("several") / "models", PORTS)
    assert is_repository(repository) and model_names(repository) == ("pairs", "single")
    with Server(repository, PORTS) as server:
        yield server


ASKED = {"single": ("apple saw",), "pairs": ("apple", "saw drill")}


@pytest.mark.server
@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ASKED)
def test_each_answers_for_itself(
    name: str,
    protocol: str,
    several: Server,
    onnx_artifact: Artifact,
    pair_artifact: Artifact,
) -> None:
    artifact = {"single": onnx_artifact, "pairs": pair_artifact}[name]
    expected = open_classifier(artifact, threads=1).logits([ASKED[name]])
    url = {"http": several.http_url, "grpc": several.grpc_url}[protocol]
    with Endpoint(url, model=name) as endpoint:
        assert endpoint.model.name == name
        np.testing.assert_allclose(endpoint.logits([ASKED[name]]), expected, atol=1e-5)

    async def ask() -> tuple[float, ...]:
        async with AsyncEndpoint(url, model=name) as endpoint:
            return (await endpoint.classify([ASKED[name]]))[0].logits

    np.testing.assert_allclose([asyncio.run(ask())], expected, atol=1e-5)


@pytest.mark.server
def test_commands_name_the_model(several: Server, tmp_path: Path) -> None:
    flags = ("--model", "single", "--url", several.http_url)
    assert last_line(succeed("classify", "saw", *flags, "--json"))[0]["label"] in ("fruit", "tool")
    (tmp_path / "texts.txt").write_text("saw\npear\n")
    load = ("--input", tmp_path / "texts.txt", "--concurrency", "1", "--duration-s", "0.2")
    for url in (several.http_url, several.grpc_url):
        words = ("loadtest", url, *load, "--warmup-s", "0", "--model", "single", "--json")
        assert last_line(succeed(*words))["runs"][0]["outcomes"]["ok"] > 0
    assert probe(["--url", several.http_url, "--model", "pairs"]) == 0
    assert probe(["--url", several.http_url, "--timeout-s", "2"]) == 1, "none has that name"


@pytest.mark.server
def test_metrics_have_the_name_of_the_model(several: Server) -> None:
    for name, example in ASKED.items():
        with Endpoint(several.http_url, model=name) as endpoint:
            endpoint.classify([example])
    count = "bertender_queue_wait_seconds_count"

    def asked(name: str) -> tuple[str, frozenset[tuple[str, str]]]:
        return count, frozenset({("model", name)})

    found = scrape_until(
        several, lambda series: all(series.get(asked(name), 0) > 0 for name in ASKED)
    )
    assert {asked(name) for name in ASKED} <= found.keys()


@pytest.mark.server
def test_a_model_that_is_not_there_is_an_error(several: Server) -> None:
    for url in (several.http_url, several.grpc_url):
        with pytest.raises(ServingError, match=r"refused.*'classifier'"):
            Endpoint(url)


def test_a_repository_of_several_is_replaced_as_a_whole(
    onnx_artifact: Artifact, pair_artifact: Artifact, tmp_path: Path
) -> None:
    models = {"single": onnx_artifact, "pairs": pair_artifact}
    write_repository(models, tmp_path / "models", ServeConfig())
    write_repository({"single": onnx_artifact}, tmp_path / "models", ServeConfig())
    assert model_names(tmp_path / "models") == ("single",)
