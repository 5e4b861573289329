"""The Python backend of the Triton model `classifier`: text in; label, score and logits out.

Triton merges the requests of all clients at the level of texts. The backend tokenises the merged
batch, runs it in buckets of similar length, and answers request by request. A request that cannot
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
import numpy.typing as npt

from bertender.core.artifact import Artifact
from bertender.core.errors import DataError
from bertender.models.onnx_predictor import ONNX_NAME, OnnxPredictor
from bertender.text.batch import Tokenize, load_tokenizer
from bertender.text.example import Example
from serve.bucketing import BucketedClassifier
from serve.triton_config import BackendParameters
from serve.wire import INPUT_NAMES, OUTPUT_NAMES, from_arrays

__all__ = ["TritonPythonModel", "open_artifact", "output_arrays", "share_of_cores"]

FloatArray = npt.NDArray[np.float32]


class TritonPythonModel:
    """What Triton calls: `initialize` once an instance, `execute` once a merged batch."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the artifact, its digests checked, and answer one text, so that loading proves it.

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
        self.classifier.logits([("warm up",) * len(self.input_names)])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer a merged batch: one response a request, in their order."""
        readings = [self._read(request) for request in requests]
        texts = [example for reading in readings for example in reading.examples]
        logits = self.classifier.logits(texts)
        responses, start = [], 0
        for reading in readings:
            stop = start + len(reading.examples)
            responses.append(self._respond(reading, logits[start:stop]))
            start = stop
        return responses

    def _read(self, request: Any) -> _Reading:
        inputs = [
            self.triton.get_input_tensor_by_name(request, name).as_numpy()
            for name in self.input_names
        ]
        try:
            return _Reading(from_arrays(inputs))
        except DataError as error:
            return _Reading((), str(error))

    def _respond(self, reading: _Reading, logits: FloatArray) -> Any:
        if reading.problem:
            error = self.triton.TritonError(reading.problem, self.triton.TritonError.INVALID_ARG)
            return self.triton.InferenceResponse(error=error)
        arrays = output_arrays(logits, self.labels)
        return self.triton.InferenceResponse(
            [self.triton.Tensor(name, arrays[name]) for name in OUTPUT_NAMES]
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
    return BucketedClassifier(
        Tokenize(load_tokenizer(artifact.path), parameters.max_length),
        # spinning threads take the cores that the server needs: it cost half the throughput
        OnnxPredictor(artifact.path / ONNX_NAME, threads, spinning=False),
        len(artifact.card.task.labels),
        parameters.tokens_per_bucket,
    )


def share_of_cores(instances: int) -> int:
    """Return the threads that each of `instances` gets of the cores that this process may use."""
    return max(1, len(os.sched_getaffinity(0)) // instances)


def output_arrays(
    logits: FloatArray, labels: npt.NDArray[np.object_]
) -> dict[str, npt.NDArray[Any]]:
    """Return the outputs by name: LABEL (batch, 1), SCORE (batch, 1), LOGITS (batch, labels)."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores = 1.0 / exponents.sum(axis=1, keepdims=True)  # the largest exponent is exp(0)
    return {
        "LABEL": labels[logits.argmax(axis=1)][:, None],
        "SCORE": scores.astype(np.float32),
        "LOGITS": logits,
    }
