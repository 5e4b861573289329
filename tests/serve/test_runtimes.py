"""The endpoint runs the model in the runtime that is set, and predicts as it does here."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from bertender.core.artifact import Artifact
from bertender.core.errors import RuntimeMissingError
from bertender.models.classifier import open_classifier
from bertender.text.batch import Example
from serve.config import ServeConfig
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


def test_a_runtime_that_is_not_installed_is_refused_before_the_start(
    onnx_artifact: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ServeConfig(**ANY_PORTS, runtime="openvino")
    repository = write_repository(onnx_artifact, tmp_path / "models", config)

    version = metadata.version

    def missing(name: str) -> str:
        if name == "openvino":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(RuntimeMissingError, match="runtime 'openvino' is not installed"):
        Server(repository, config).__enter__()
