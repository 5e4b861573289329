"""Triton's side of the Python backend, stood in for: requests, responses, metrics."""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from google.protobuf import json_format  # type: ignore[import-untyped]

from bertender.core.artifact import Artifact
from bertender.text.batch import Example
from serve.backend.model import TritonPythonModel
from serve.config import ServeConfig
from serve.repository import write_repository
from serve.repository.config_pbtxt import model_config
from serve.wire import to_arrays


@dataclass
class Tensor:
    name: str
    array: Any

    def as_numpy(self) -> Any:
        return self.array


class TritonError(Exception):
    INVALID_ARG = 3
    UNAVAILABLE = 4
    INTERNAL = 5
    CANCELLED = 6
    UNSUPPORTED = 7

    @property
    def code(self) -> int:
        return int(self.args[1])


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] | None = None
    error: TritonError | None = None

    def outputs(self) -> dict[str, Any]:
        return {tensor.name: tensor.array for tensor in self.output_tensors or ()}


@dataclass
class Request:
    """A request, which is its own sender."""

    arrays: list[Any]
    settings: dict[str, Any] = field(default_factory=dict)
    cancelled: bool = False
    sent: list[InferenceResponse] = field(default_factory=list)
    final: threading.Event = field(default_factory=threading.Event)

    def parameters(self) -> str:
        return json.dumps(self.settings)

    def is_cancelled(self) -> bool:
        return self.cancelled

    def get_response_sender(self) -> Request:
        return self

    def send(self, response: InferenceResponse, flags: int) -> None:
        assert flags == TRITON.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self.sent.append(response)
        self.final.set()

    def response(self) -> InferenceResponse:
        """Wait for the response, of which there must be one."""
        assert self.final.wait(10)
        (response,) = self.sent
        return response


class MetricFamily:
    """Metrics by their labels; each is what has been added to it."""

    COUNTER, GAUGE = "counter", "gauge"

    def __init__(self, name: str, description: str, kind: str) -> None:
        self.name = name

    def Metric(self, labels: Mapping[str, str]) -> Metric:  # noqa: N802 - Triton's name
        return Metric(self.name, labels)


@dataclass
class Metric:
    name: str
    labels: Mapping[str, str]

    def increment(self, amount: float) -> None:
        SENT[self.name, *self.labels.values()] += amount  # type: ignore[assignment]


SENT = Counter[tuple[str, ...]]()
"""Amount of each series."""

TRITON = SimpleNamespace(
    MetricFamily=MetricFamily,
    TRITONSERVER_RESPONSE_COMPLETE_FINAL=1,
    Tensor=Tensor,
    TritonError=TritonError,
    InferenceResponse=InferenceResponse,
    get_input_tensor_by_name=lambda request, name: Tensor(name, request.arrays[0]),
)


def request_of(*examples: Example, **settings: Any) -> Request:
    return Request(to_arrays(examples, text_columns=1), settings)


def responses_of(backend: TritonPythonModel, *requests: Request) -> list[InferenceResponse]:
    backend.execute(requests)
    return [request.response() for request in requests]


@contextmanager
def running_backend(
    artifact: Artifact, folder: Path, config: ServeConfig
) -> Iterator[TritonPythonModel]:
    """Run the backend of a repository that is written into a folder."""
    directory = write_repository(artifact, folder, config)
    as_json = json_format.MessageToJson(
        model_config(artifact.card, config), preserving_proto_field_name=True
    )
    model = TritonPythonModel()
    with mock.patch.dict(sys.modules, triton_python_backend_utils=TRITON):
        model.initialize(
            {
                "model_config": as_json,
                "model_repository": str(directory / "classifier"),
                "model_version": "1",
            }
        )
        yield model
        model.finalize()
