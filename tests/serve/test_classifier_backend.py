"""The backend answers each request of a merged batch by itself, with Triton's side stood in for."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from google.protobuf import json_format

from bertender.core.artifact import Artifact
from bertender.core.cores import usable_cores
from bertender.models.predictor import Classifier
from bertender.problems import SINGLE_LABEL, Outputs
from bertender.text.example import Example
from serve.classifier_backend import TritonPythonModel, share_of_cores
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.triton_config import model_config
from serve.wire import to_arrays


@dataclass
class Tensor:
    name: str
    array: Any

    def as_numpy(self) -> Any:
        return self.array


class TritonError(Exception):
    INVALID_ARG = 3


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] | None = None
    error: TritonError | None = None

    def outputs(self) -> dict[str, Any]:
        return {tensor.name: tensor.array for tensor in self.output_tensors or ()}


TRITON = SimpleNamespace(
    Tensor=Tensor,
    TritonError=TritonError,
    InferenceResponse=InferenceResponse,
    get_input_tensor_by_name=lambda request, name: request[name],
)


@pytest.fixture
def backend(
    onnx_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory, monkeypatch: Any
) -> TritonPythonModel:
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", TRITON)
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    config = ServeConfig(threads_per_instance=1, tokens_per_bucket=64)
    directory = write_repository(onnx_artifact, tmp_path_factory.mktemp("r") / "models", config)
    model = TritonPythonModel()
    as_json = json_format.MessageToJson(
        model_config(onnx_artifact.card, config), preserving_proto_field_name=True
    )
    model.initialize(
        {
            "model_config": as_json,
            "model_repository": str(directory / "classifier"),
            "model_version": "1",
        }
    )
    return model


def request_of(*examples: Example) -> dict[str, Tensor]:
    (array,) = to_arrays(examples, text_columns=1)
    return {"TEXT": Tensor("TEXT", array)}


def arrays_of(logits: np.ndarray, labels: np.ndarray) -> dict[str, np.ndarray]:
    outputs = [Outputs(row[None], np.zeros(1, dtype=np.int64)) for row in logits]
    return SINGLE_LABEL.endpoint.arrays(outputs, [("text",)] * len(logits), labels)


def test_each_request_gets_its_own_answers(
    backend: TritonPythonModel, local: Classifier, texts: tuple[Example, ...]
) -> None:
    parts = (texts[:5], texts[5:6], texts[-4:])
    responses = backend.execute([request_of(*part) for part in parts])
    for part, response in zip(parts, responses, strict=True):
        outputs = response.outputs()
        expected = arrays_of(local.logits(part), np.array([b"fruit", b"tool"], np.object_))
        np.testing.assert_allclose(outputs["LOGITS"], expected["LOGITS"], atol=1e-5)
        np.testing.assert_allclose(outputs["SCORE"], expected["SCORE"], atol=1e-5)
        assert outputs["LABEL"].tolist() == expected["LABEL"].tolist()


@pytest.mark.parametrize("bad", [b"\xff", b" "])
def test_a_bad_request_does_not_fail_its_neighbours(
    backend: TritonPythonModel, local: Classifier, texts: tuple[Example, ...], bad: bytes
) -> None:
    unreadable = {"TEXT": Tensor("TEXT", np.array([[b"fine"], [bad]], np.object_))}
    first, second, third = backend.execute(
        [request_of(texts[0]), unreadable, request_of(*texts[1:4])]
    )
    assert second.error is not None and "TEXT row 1" in str(second.error)
    np.testing.assert_allclose(first.outputs()["LOGITS"], local.logits(texts[:1]), atol=1e-5)
    np.testing.assert_allclose(third.outputs()["LOGITS"], local.logits(texts[1:4]), atol=1e-5)


def test_a_batch_of_bad_requests_only_is_answered(backend: TritonPythonModel) -> None:
    unreadable = {"TEXT": Tensor("TEXT", np.array([[b"\xff"]], np.object_))}
    assert [bool(response.error) for response in backend.execute([unreadable] * 2)] == [True] * 2


def test_the_score_is_the_softmax_of_the_label() -> None:
    logits = np.array([[0.0, 1000.0, 999.0], [2.0, 1.0, 0.0]], np.float32)
    outputs = arrays_of(logits, np.array([b"a", b"b", b"c"], np.object_))
    assert outputs["LABEL"].tolist() == [[b"b"], [b"a"]]
    np.testing.assert_allclose(outputs["SCORE"], [[0.7310586], [0.6652409]], rtol=1e-6)
    assert outputs["SCORE"].dtype == np.float32


def test_instances_share_the_cores_but_have_one_at_least() -> None:
    assert share_of_cores(1) == usable_cores()
    assert share_of_cores(10_000) == 1


def test_the_stub_loads_no_pytorch() -> None:
    script = "import sys, serve.classifier_backend; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], env={"USE_TORCH": "0"}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False", done.stderr
