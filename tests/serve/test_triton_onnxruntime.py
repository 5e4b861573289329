"""The runtime `triton-onnxruntime` on the real server, with a stand-in for Triton's own backend."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, ServingError
from bertender.core.hardware import share_of_cores
from bertender.models.classifier import Classifier, open_classifier
from bertender.text.batch import Example
from bertender.text.tokenizer import load_tokenizer
from serve.client.endpoint import Endpoint
from serve.config import ServeCommandConfig, ServeConfig
from serve.repository import is_repository, write_repository
from serve.repository.config_pbtxt import encoder_config, read_model_config, read_signature
from serve.server.installation import find_installation
from serve.server.server import Server
from tests.serve.layouts import (
    BREAK_VARIABLE,
    ENCODER_RUNTIME,
    LOAD_VARIABLE,
    LOG_VARIABLE,
    lay_out,
    lay_out_with_encoders,
)
from tests.serve.marked_model import ASK, SAYS
from tests.served import ANY_PORTS, ask_one_by_one, one_by_one, served

BROKEN = "wrench"
"""A word at which the encoder fails."""


@dataclass(frozen=True)
class Running:
    server: Server
    shapes: Path
    """The shapes that the encoder was given, one a line."""

    def seen(self) -> list[tuple[int, int]]:
        return [tuple(json.loads(line)) for line in self.shapes.read_text().splitlines()]


@pytest.fixture(scope="module")
def running(onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("encoder")
    binary = lay_out_with_encoders(folder / "root")
    (token,) = load_tokenizer(onnx_artifact.path)(BROKEN, add_special_tokens=False)["input_ids"]
    config = ServeConfig.parse(
        {
            **ANY_PORTS,
            "runtime": ENCODER_RUNTIME,
            "tritonserver": binary,
            "threads_per_instance": 1,
            "max_batch_size": 64,
            "tokens_per_bucket": 128,
        }
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BREAK_VARIABLE, str(token))
        patch.setenv(LOG_VARIABLE, str(folder / "shapes"))
        repository = write_repository(onnx_artifact, folder / "models", config)
        with Server(repository, config) as server:
            yield Running(server, folder / "shapes")


def without(texts: tuple[Example, ...], word: str) -> list[Example]:
    return [example for example in texts if word not in example[0]]


@pytest.mark.server
def test_it_predicts_as_the_local_model(
    running: Running, local: Classifier, texts: tuple[Example, ...]
) -> None:
    few = [each for each in without(texts, BROKEN) if len(each[0]) < 200][:20]
    labels, logits = ask_one_by_one(running.server.http_url, few)
    expected = one_by_one(local, few)
    assert labels == expected[0]
    np.testing.assert_allclose(logits, expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.server
def test_a_merged_batch_runs_in_several_buckets(
    running: Running, local: Classifier, texts: tuple[Example, ...]
) -> None:
    sound = without(texts, BROKEN)[-60:]
    before = len(running.seen())
    with Endpoint(running.server.grpc_url) as endpoint:
        answers = endpoint.classify(sound)
    np.testing.assert_allclose([each.logits for each in answers], local.logits(sound), atol=1e-4)
    buckets = running.seen()[before:]
    assert sum(rows for rows, _ in buckets) == len(sound)
    assert len({tokens for _, tokens in buckets}) > 3, buckets
    assert all(rows * tokens <= 128 or rows == 1 for rows, tokens in buckets)


@pytest.mark.server
@pytest.mark.parametrize("protocol", ASK)
def test_an_error_of_the_encoder_reaches_its_own_request_alone(
    running: Running, protocol: str
) -> None:
    ask, says = ASK[protocol], SAYS[protocol]
    texts = [*["apple pear"] * 5, f"saw {BROKEN}", *["plum"] * 5]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: ask(running.server, [text]), texts))
    assert [each.status for each in answers] == [
        says["broken" if BROKEN in text else "fine"] for text in texts
    ]
    assert "'classifier-encoder': out of memory on the device" in answers[5].content


@pytest.mark.server
def test_the_encoder_has_run_before_the_first_request(running: Running) -> None:
    config = read_model_config(running.server.repository / "classifier-encoder" / "config.pbtxt")
    warmed = [tuple(sample.inputs["input_ids"].dims) for sample in config.model_warmup]
    assert len(warmed) > 3
    assert running.seen()[: len(warmed)] == warmed


@pytest.mark.slow
@pytest.mark.server
def test_pairs_of_texts_are_predicted(pair_artifact: Artifact, tmp_path: Path) -> None:
    settings = {"tritonserver": lay_out_with_encoders(tmp_path / "root"), "max_batch_size": 8}
    pairs = [("apple pear", "saw"), ("hammer", "drill pliers chisel saw"), ("plum", "melon")]
    local = open_classifier(pair_artifact, threads=1)
    with (
        served(pair_artifact, tmp_path, runtime=ENCODER_RUNTIME, **settings) as server,
        Endpoint(server.http_url) as endpoint,
    ):
        answers = endpoint.classify(pairs)
    np.testing.assert_allclose([each.logits for each in answers], local.logits(pairs), atol=1e-5)


@pytest.mark.server
def test_a_server_is_ready_when_both_models_are(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LOAD_VARIABLE, "2")
    binary = lay_out_with_encoders(tmp_path / "root")
    with served(onnx_artifact, tmp_path, runtime=ENCODER_RUNTIME, tritonserver=binary) as server:
        assert ASK["http"](server, ["pear"]).status == "200"


@pytest.mark.server
def test_an_encoder_that_cannot_be_loaded_ends_the_start(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    values = {"runtime": ENCODER_RUNTIME, "tritonserver": lay_out_with_encoders(tmp_path / "root")}
    config = ServeConfig.parse({**ANY_PORTS, **values})
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with (repository / "classifier-encoder" / "config.pbtxt").open("a") as file:
        file.write('input { name: "position_ids" data_type: TYPE_INT64 dims: [-1, -1] }\n')
    with pytest.raises(ServingError, match="did not start"):
        Server(repository, config).__enter__()


def test_the_artifact_is_there_once(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(runtime=ENCODER_RUNTIME)
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    assert is_repository(repository)
    assert [path.name for path in repository.rglob("model.onnx")] == ["model.onnx"]
    written = Artifact.load(repository / "classifier-encoder" / "1")
    assert written.digest == onnx_artifact.digest
    write_repository(onnx_artifact, repository, ServeConfig())  # it is replaced as any other
    assert not (repository / "classifier-encoder").exists()


@pytest.mark.parametrize(("gpu", "kind"), [(False, 2), (True, 1)])
def test_the_instances_are_on_the_device(
    onnx_artifact: Artifact, tmp_path: Path, gpu: bool, kind: int
) -> None:
    settings = {"runtime": ENCODER_RUNTIME, "gpu": gpu, "instances": 2}
    config = ServeCommandConfig.parse(
        {**settings, "threads_per_instance": 3, "repository_only": tmp_path / "models"}
    )
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    encoder, classifier = (
        read_model_config(repository / name / "config.pbtxt")
        for name in ("classifier-encoder", "classifier")
    )
    assert [(each.kind, each.count) for each in encoder.instance_group] == [(kind, 2)]
    assert [(each.kind, each.count) for each in classifier.instance_group] == [(2, 2)]
    threads = {name: each.string_value for name, each in encoder.parameters.items()}
    assert threads == ({} if gpu else {"intra_op_thread_count": "3"})


@pytest.mark.parametrize("instances", [1, 2])
def test_copies_on_the_cpu_share_the_cores(instances: int, onnx_artifact: Artifact) -> None:
    signature = read_signature(onnx_artifact.path / "model.onnx")
    config = ServeConfig(runtime=ENCODER_RUNTIME, instances=instances)
    (threads,) = encoder_config(signature, config, ()).parameters.values()
    assert threads.string_value == str(share_of_cores(instances))
    on_a_gpu = config.model_copy(update={"gpu": True})
    assert not encoder_config(signature, on_a_gpu, ()).parameters


def test_cores_of_another_machine_are_not_shared_out_here(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    settings = {"runtime": ENCODER_RUNTIME, "repository_only": tmp_path / "models"}
    signature = read_signature(onnx_artifact.path / "model.onnx")
    alone = ServeCommandConfig.parse(settings)
    assert not encoder_config(signature, alone, ()).parameters, "it takes every core there"
    with pytest.raises(ConfigError, match=r"instances=2 .*Set --threads-per-instance"):
        ServeCommandConfig.parse({**settings, "instances": 2})
    for more in ({"threads_per_instance": 3}, {"gpu": True}):
        assert ServeCommandConfig.parse({**settings, "instances": 2, **more})


def test_a_server_without_the_backend_is_refused(tmp_path: Path) -> None:
    assert not find_installation().has_backend("onnxruntime")
    settings = {**ANY_PORTS, "runtime": ENCODER_RUNTIME}
    with pytest.raises(ConfigError, match=r"no backend 'onnxruntime' .*--repository-only"):
        ServeConfig.parse(settings)
    with pytest.raises(ConfigError, match=r"other/backends.*--tritonserver ROOT"):
        ServeConfig.parse({**settings, "tritonserver": lay_out(tmp_path / "other", "9.9.9")})


def test_a_repository_for_a_server_elsewhere_is_not(tmp_path: Path) -> None:
    assert ServeCommandConfig.parse(
        {"runtime": ENCODER_RUNTIME, "repository_only": tmp_path / "models"}
    )


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino"])
def test_a_gpu_is_refused_with_runtimes_of_the_cpu(runtime: str) -> None:
    with pytest.raises(ConfigError, match=rf"gpu=True and runtime={runtime}, which runs in"):
        ServeConfig.parse({"gpu": True, "runtime": runtime})
