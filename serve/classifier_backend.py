"""The Python backend of the Triton model `classifier`: text in; label, score and logits out.

Triton merges the requests of all clients at the level of texts. The backend tokenises the merged
batch, runs it in buckets of similar length, and responds request by request. A request that cannot
be read gets an error of its own; the others in the batch do not notice.

Triton starts this class in a Python process of its own (the stub). PyTorch is not loaded there.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertender.core.artifact import Artifact
from bertender.core.cores import usable_cores
from bertender.core.errors import DataError
from bertender.models.onnx_predictor import ONNX_NAME, OnnxPredictor
from bertender.problems import PROBLEMS, Outputs
from bertender.text.batch import load_tokenizer
from bertender.text.example import Example
from serve.bucketing import BucketedClassifier
from serve.triton_config import BackendParameters
from serve.wire import INPUT_NAMES, from_arrays

__all__ = ["TritonPythonModel", "open_artifact", "share_of_cores"]


class TritonPythonModel:
    """Python backend of Triton: `initialize` once an instance, `execute` once a merged batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact, its digests checked, and classify one text, so that loading proves it.

        Raises:
            DamagedArtifactError: a file of the artifact is missing or changed.
            ModelError: ONNX Runtime or the tokenizer cannot open it.
        """
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        config = json.loads(args["model_config"])
        parameters = BackendParameters.from_model_config(config)
        threads = parameters.threads or share_of_cores(config["instance_group"][0]["count"])
        os.environ["RAYON_NUM_THREADS"] = str(threads)  # the tokenizer's share
        folder = Path(args["model_repository"], args["model_version"], parameters.artifact)
        artifact = Artifact.load(folder)
        self.labels = np.array([label.encode() for label in artifact.card.task.labels], np.object_)
        self.input_names = INPUT_NAMES[: len(artifact.card.task.text_columns)]
        self.classifier = open_artifact(artifact, parameters, threads)
        texts = ("warm up",) * len(self.input_names)
        self.classifier.outputs([self.classifier.problem.endpoint.to_example(texts)])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Classify a merged batch: one response a request, in their order."""
        readings = [self._read(request) for request in requests]
        texts = [example for reading in readings for example in reading.examples]
        outputs = self.classifier.outputs(texts)
        responses, start = [], 0
        for reading in readings:
            stop = start + len(reading.examples)
            responses.append(self._respond(reading, outputs[start:stop]))
            start = stop
        return responses

    def _read(self, request: Any) -> _Reading:
        inputs = [
            self.triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in self.input_names
        ]
        to_example = self.classifier.problem.endpoint.to_example
        try:
            return _Reading(tuple(map(to_example, from_arrays(inputs))))
        except DataError as error:
            return _Reading((), str(error))

    def _respond(self, reading: _Reading, outputs: Sequence[Outputs]) -> Any:
        if reading.problem:
            error = self.triton.TritonError(reading.problem, self.triton.TritonError.INVALID_ARG)
            return self.triton.InferenceResponse(error=error)
        endpoint = self.classifier.problem.endpoint
        arrays = endpoint.arrays(outputs, reading.examples, self.labels)
        return self.triton.InferenceResponse(
            [self.triton.Tensor(each.name, arrays[each.name]) for each in endpoint.outputs]
        )


@dataclass(frozen=True)
class _Reading:
    """The examples of one request, or what is wrong with it."""

    examples: tuple[Example, ...]
    problem: str = ""


def open_artifact(
    artifact: Artifact, parameters: BackendParameters, threads: int
) -> BucketedClassifier:
    """Open an ONNX artifact as the endpoint runs it."""
    problem = PROBLEMS[artifact.card.task.problem_type]
    return BucketedClassifier(
        problem.encoder(load_tokenizer(artifact.path), parameters.max_length),
        # spinning threads take the cores that the server needs: it cost half the throughput
        OnnxPredictor(artifact.path / ONNX_NAME, threads, spinning=False),
        len(artifact.card.task.labels),
        parameters.tokens_per_bucket,
        problem,
    )


def share_of_cores(instances: int) -> int:
    """Return the threads that each of `instances` gets of the cores that this process may use."""
    return max(1, usable_cores() // instances)
