"""The extra `serve`: what is in it is enough to serve, and none of it makes models."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from bertender.core.artifact import Artifact
from bertender.core.machine import data_directory
from bertender.models.classifier import Classifier
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from bertender.text.batch import Example
from export.config import ExportConfig
from export.exporter import export
from serve.client.endpoint import Endpoint
from serve.server.server import Server
from serve.server.wheels import why_not_here
from tests.fresh_environment import (
    CLEAN,
    FreshEnvironment,
    closure,
    fresh_environment,
    written_packages,
)
from tests.front import write_toy_files
from tests.locked import locked_command, skip_unless_lockable
from tests.quick import quick

MAKES_MODELS = {"torch", "datasets", "scikit-learn", "scipy", "accelerate", "onnx"}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder outside of /tmp, which a locked process has for itself."""
    folder = Path(tempfile.mkdtemp(prefix="bertender-fresh-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def environment(folder: Path) -> FreshEnvironment:
    return fresh_environment(folder / "environment", "serve")


@pytest.fixture(scope="module")
def client(folder: Path) -> FreshEnvironment:
    return fresh_environment(folder / "client")


def test_nothing_in_it_makes_models() -> None:
    packages = closure(written_packages("serve"))
    assert not MAKES_MODELS & packages.keys()
    assert {"onnxruntime", "tritonclient"} <= packages.keys()
    assert closure(written_packages("train")).keys() >= MAKES_MODELS


def test_without_extras_there_is_a_client_alone() -> None:
    assert not {*MAKES_MODELS, "onnxruntime", "transformers"} & closure(written_packages()).keys()


ASKING = ("--help", "--version", "classify --help", "loadtest --help", "doctor --json", "show")


@pytest.mark.parametrize("words", quick(ASKING, "--help", "show"))
def test_it_runs_without_extras(
    words: str, client: FreshEnvironment, onnx_artifact: Artifact
) -> None:
    more = [onnx_artifact.path] if words == "show" else []
    assert client.run("-m", "bertender", *words.split(), *more).stdout


@pytest.mark.server
@pytest.mark.one_path
def test_the_client_alone_classifies_files(
    client: FreshEnvironment, served: Server, tmp_path: Path
) -> None:
    texts, output = tmp_path / "texts.csv", tmp_path / "predictions.parquet"
    texts.write_text("text\npear\nsaw\n")
    words = ("classify", "--input", texts, "--output", output, "--url", served.grpc_url)
    client.run("-m", "bertender", *words)
    assert pyarrow.parquet.read_table(output).num_rows == 2


EXTRA_COMMANDS = ("serve", "deploy", "tune", "api-key")


@pytest.mark.parametrize(
    "words",
    quick(
        [*(f"{name} --help" for name in EXTRA_COMMANDS), *ASKING],
        *("tune --help", "doctor --json"),
    ),
)
def test_it_runs_with_the_extra(
    words: str, environment: FreshEnvironment, onnx_artifact: Artifact
) -> None:
    more = [onnx_artifact.path] if words == "show" else []
    assert environment.run("-m", "bertender", *words.split(), *more).stdout


@pytest.mark.one_path
@pytest.mark.parametrize("runtime", ["onnxruntime", "triton-onnxruntime"])
def test_the_extra_writes_a_repository_and_checks_it(
    environment: FreshEnvironment, onnx_artifact: Artifact, tmp_path: Path, runtime: str
) -> None:
    words = ("serve", onnx_artifact.path, "--repository-only", tmp_path / "models", "--json")
    done = environment.run("-m", "bertender", *words, "--runtime", runtime)
    repository = Path(json.loads(done.stdout)["repository"])
    assert (repository / "classifier" / "config.pbtxt").is_file()
    is_tried = runtime == "onnxruntime" and why_not_here() is None
    assert (json.loads(done.stdout)["not_tried"] is None) == is_tried


@pytest.mark.server
@pytest.mark.slow
def test_the_extra_deploys(
    environment: FreshEnvironment, teacher: Artifact, task: Task, tmp_path: Path
) -> None:
    artifact = export(teacher, task, ExportConfig(parity_texts=8), tmp_path / "onnx").path
    repository = tmp_path / "models"
    environment.run("-m", "bertender", "serve", artifact, "--repository-only", repository)
    done = environment.run("-m", "bertender", "deploy", artifact, "--to", repository, "--json")
    assert json.loads(done.stdout)["version"] == 2


@pytest.mark.server
@pytest.mark.slow
def test_the_python_functions_serve_with_the_extra(
    environment: FreshEnvironment, onnx_artifact: Artifact
) -> None:
    script = (
        "import bertender, sys\n"
        "ports = {'http_port': 0, 'grpc_port': 0, 'metrics_port': 0}\n"
        "with bertender.serve(sys.argv[1], **ports) as server:\n"
        "    print(bertender.classify(['pear'], server.http_url)[0].label)\n"
    )
    assert environment.run("-c", script, onnx_artifact.path).stdout in ("fruit\n", "tool\n")


@pytest.mark.one_path
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("finetune", "which is not installed"),
        ("distill", "pip install 'bertender[train]'"),
    ],
)
def test_what_makes_models_names_its_extra(
    words: str,
    said: str,
    environment: FreshEnvironment,
    onnx_artifact: Artifact,
    task: Task,
    tmp_path: Path,
) -> None:
    """What it needs is loaded after the help and the settings."""
    assert "--epochs" in environment.run("-m", "bertender", words, "--help").stdout
    flags = (*write_toy_files(tmp_path, task).flags, "--out", tmp_path / "out")
    place = ("--teacher", onnx_artifact.path)
    done = environment.run("-m", "bertender", words, *place, *flags, status=2)
    assert said in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


def test_serving_without_the_extra_names_it(
    client: FreshEnvironment, onnx_artifact: Artifact
) -> None:
    done = client.run("-m", "bertender", "serve", onnx_artifact.path, status=2)
    assert "pip install 'bertender[serve]'" in " ".join(done.stderr.split())


def asked_examples(texts: tuple[Example, ...]) -> tuple[Example, ...]:
    """Return all of SST-2's dev set where it is, else toy texts."""
    if data_directory() is None:
        return texts[:100]
    return load_task(TaskConfig(task="sst2")).dev.examples


@pytest.mark.server
@pytest.mark.slow
def test_a_locked_down_server_predicts_as_the_local_model(
    environment: FreshEnvironment,
    folder: Path,
    onnx_artifact: Artifact,
    local: Classifier,
    texts: tuple[Example, ...],
) -> None:
    """No root, a root and a model that are read-only: the container of deploy/ is run so."""
    model = folder / "model"
    shutil.copytree(onnx_artifact.path, model)
    env = {**CLEAN, "TMPDIR": "/tmp", "HOME": "/nonexistent"}
    skip_unless_lockable(environment.python, env)
    ports = ("--http-port", "0", "--grpc-port", "0", "--metrics-port", "0")
    command = locked_command(
        environment.python, "-m", "bertender", "serve", model, "--json", *ports
    )
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/"
    )
    assert process.stdout is not None
    try:
        ready = process.stdout.readline()
        assert ready, process.communicate()
        examples = asked_examples(texts)
        environment.run("-m", "serve.probe", "--url", json.loads(ready)["http"])
        with Endpoint(json.loads(ready)["grpc"]) as endpoint:
            results = endpoint.classify(examples)
    finally:
        process.terminate()
        process.communicate(timeout=30)
    logits = np.concatenate([local.logits([example]) for example in examples])
    np.testing.assert_allclose([each.logits for each in results], logits, atol=1e-4)
    assert process.returncode == 0
