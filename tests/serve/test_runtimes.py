"""The endpoint runs the model in the runtime that is set, and predicts as it does here."""

from __future__ import annotations

import asyncio
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import RuntimeMissingError
from bertender.models.classifier import open_classifier
from bertender.text.batch import Example
from serve.config import ServeConfig
from serve.door.embedded import EmbeddedEngine
from serve.repository import write_repository
from serve.server.server import Server
from tests.runtimes import needs
from tests.serve.processes import stub_of
from tests.served import ANY_PORTS, ask_one_by_one, one_by_one, served


@pytest.mark.server
@needs("openvino")
def test_it_serves_in_openvino(
    onnx_artifact: Artifact, texts: tuple[Example, ...], tmp_path: Path
) -> None:
    local = open_classifier(onnx_artifact, threads=1, runtime="openvino")
    few = [example for example in texts if len(example[0]) < 200][:12]
    with served(onnx_artifact, tmp_path, runtime="openvino") as run:
        labels, logits = ask_one_by_one(run.grpc_url, few)
        mapped = {Path(each.path).name for each in stub_of(run).memory_maps()}
    expected = one_by_one(local, few)
    assert labels == expected[0]
    np.testing.assert_allclose(logits, expected[1], rtol=1e-5, atol=1e-5)
    assert any(name.startswith("libopenvino") for name in mapped)
    assert not any("onnxruntime" in name for name in mapped), "it is not loaded for nothing"


@pytest.fixture
def without_openvino(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide that it is installed, from this process."""
    version = metadata.version

    def missing(name: str) -> str:
        if name == "openvino":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", missing)


NOT_INSTALLED = "runtime 'openvino' is not installed"


@pytest.mark.usefixtures("without_openvino")
def test_a_runtime_that_is_not_installed_is_refused_before_the_start(
    onnx_artifact: Artifact, tmp_path: Path
) -> None:
    config = ServeConfig(**ANY_PORTS, runtime="openvino", server="triton")
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with pytest.raises(RuntimeMissingError, match=NOT_INSTALLED):
        Server(repository, config).__enter__()


@pytest.mark.usefixtures("without_openvino")
def test_it_is_refused_without_triton_too(onnx_artifact: Artifact, tmp_path: Path) -> None:
    config = ServeConfig(**ANY_PORTS, runtime="openvino", server="embedded")
    repository = write_repository(onnx_artifact, tmp_path / "models", config)
    with pytest.raises(RuntimeMissingError, match=NOT_INSTALLED):
        asyncio.run(EmbeddedEngine(repository, config).start())
