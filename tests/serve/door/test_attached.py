"""The door in front of a Triton that something else starts: it asks, waits, and starts nothing."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.bare_triton import BareTriton, bare_triton
from bertender.core.artifact import Artifact, read_golden
from bertender.core.errors import ConfigError, ServingError
from bertender.models.classifier import Classifier
from serve.client.endpoint import Endpoint, classify
from serve.config import ServeConfig
from serve.door.engine import model_of
from serve.door.process import Artifacts
from serve.repository import Models, write_repository
from serve.repository.config_pbtxt import (
    CONFIG_NAME,
    only_version,
    read_model_config,
    write_model_config,
)
from serve.server.server import Server, serving
from serve.server.targets import model_folder
from tests.serve.deployment.conftest import Versions
from tests.serve.deployment.conftest import versions as versions
from tests.serve.door.raw_http import get
from tests.serve.processes import TRITON_NAME, family_of
from tests.served import ANY_PORTS

pytestmark = pytest.mark.server

TOKEN = "a-token-of-32-letters-or-a-few-more"


@pytest.fixture(scope="module")
def repository(onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attached") / "models"
    return write_repository(onnx_artifact, folder, ServeConfig(threads_per_instance=1))


@pytest.fixture
def triton(repository: Path, tmp_path: Path) -> Iterator[BareTriton]:
    with bare_triton(repository, tmp_path / "triton") as running:
        yield running


def attached(url: str, **settings: object) -> ServeConfig:
    return ServeConfig.parse({**ANY_PORTS, "triton": url, "ready_timeout_s": 20, **settings})


def status(server: Server) -> int:
    return get(server.config.http_port, "/v2/health/ready").status


def wait_for(server: Server, wanted: int, timeout_s: float = 20) -> None:
    deadline = time.monotonic() + timeout_s
    while (found := status(server)) != wanted:
        assert time.monotonic() < deadline, found
        time.sleep(0.1)


def test_another_triton_numbers_its_versions_itself(versions: Versions, tmp_path: Path) -> None:
    """A deployment made this artifact its version 7; in the door's own folder it is version 1."""
    repository = write_repository(versions.old, tmp_path / "models", ServeConfig())
    model = model_of(read_model_config(repository / "classifier" / CONFIG_NAME), "7")
    artifacts, golden = Artifacts(repository), read_golden(versions.old).texts[0]
    assert artifacts.golden(model) == golden.example
    assert artifacts.count_tokens(model, [golden.example]) == [golden.tokens]


def test_until_a_deployment_is_loaded_the_earlier_version_counts(
    versions: Versions, tmp_path: Path
) -> None:
    repository = write_repository(versions.old, tmp_path / "models", ServeConfig())
    served = model_of(read_model_config(repository / "classifier" / CONFIG_NAME), "1")
    folder = model_folder(repository, "classifier")
    folder.select(folder.add(versions.new).config)
    assert Artifacts(repository).folder(served) == repository / "classifier" / "1" / "artifact"
    assert folder.served == 2


def test_it_answers_and_follows_whether_triton_is_there(
    triton: BareTriton, repository: Path, onnx_artifact: Artifact, local: Classifier, tmp_path: Path
) -> None:
    texts = [("apple saw",), ("plum",)]
    logits = local.logits(texts)
    expected = [local.labels[int(row.argmax())] for row in np.stack(logits)]
    with serving(onnx_artifact, attached(triton.http_url)) as server:
        assert not family_of(server), "it starts no process"
        assert [each.label for each in classify(texts, server.http_url)] == expected
        assert get(server.config.metrics_port, "/metrics").status == 200
        (process,) = processes_of(triton)
        process.send_signal(signal.SIGSTOP)
        try:
            wait_for(server, 503)
        finally:
            process.send_signal(signal.SIGCONT)
        wait_for(server, 200)
        process.kill()
        wait_for(server, 503)
        assert get(server.config.http_port, "/v2/health/live").status == 200
        port = {"http-port": triton.http_port}
        with bare_triton(repository, tmp_path / "again", ports=port):
            wait_for(server, 200)
            assert [each.label for each in classify(texts, server.http_url)] == expected


def processes_of(triton: BareTriton) -> list[psutil.Process]:
    # a process that has ended has no command line any more: None
    return [
        each
        for each in psutil.process_iter(["name", "cmdline"])
        if each.info["name"] == TRITON_NAME
        and any(
            word.endswith(f"http-port={triton.http_port}") for word in each.info["cmdline"] or []
        )
    ]


def test_it_has_the_token_that_triton_asks_for(
    repository: Path, onnx_artifact: Artifact, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with bare_triton(repository, tmp_path / "triton", token=TOKEN) as triton:
        with pytest.raises(ServingError, match=r"another token.* bertender-admin-token in its"):
            start(onnx_artifact, attached(triton.http_url))
        start(onnx_artifact, attached(triton.http_url, triton_token_file=file))


def test_what_its_repository_sets_holds(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(threads_per_instance=1, abstain_below=1.0, max_length=8)
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with (
        bare_triton(repository, tmp_path / "triton") as triton,
        serving(onnx_artifact, attached(triton.http_url)) as server,
        Endpoint(server.http_url) as endpoint,
    ):
        assert endpoint.model.longest_input == 8
        assert [each.abstained for each in endpoint.classify([("apple",)])] == [True]


def test_the_page_describes_what_another_triton_numbers_itself(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    model = write_repository(onnx_artifact, tmp_path / "models", ServeConfig()) / "classifier"
    (model / "1").rename(model / "7")
    config = read_model_config(model / CONFIG_NAME)
    config.version_policy.CopyFrom(only_version(7))
    write_model_config(model / CONFIG_NAME, config)
    with (
        bare_triton(tmp_path / "models", tmp_path / "triton") as triton,
        serving(onnx_artifact, attached(triton.http_url, page=True)) as server,
    ):
        (found,) = json.loads(get(server.config.http_port, "/about").body)
    assert (found["version"], found["labels"]) == ("7", [*onnx_artifact.card.task.labels])


def start(models: Models, config: ServeConfig) -> None:
    with serving(models, config):
        pass


def test_a_triton_without_the_model_is_refused(
    triton: BareTriton, pair_artifact: Artifact, onnx_artifact: Artifact
) -> None:
    with pytest.raises(ServingError, match="'classifier' is of another artifact"):
        start(pair_artifact, attached(triton.http_url))
    with pytest.raises(ServingError, match=r"models other were not ready within 1 s"):
        start({"other": onnx_artifact}, attached(triton.http_url, ready_timeout_s=1))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"server": "embedded"}, "asks no Triton"),
        ({"tritonserver": "bin/tritonserver"}, "starts none"),
        ({"restart": False}, "restarts none"),
        ({"max_text_bytes": 9, "instances": 2}, "instances=2, max_text_bytes=9: the repository of"),
        ({"triton_token_file": "missing"}, "triton_token_file=missing: .*No such file"),
    ],
)
def test_what_does_not_fit_is_refused(
    onnx_artifact: Artifact, settings: dict[str, object], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason):
        start(onnx_artifact, attached("http://127.0.0.1:1", **settings))
