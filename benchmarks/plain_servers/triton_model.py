"""Triton's Python backend around `PlainModel`: what Triton has merged is one run.

With `max_batch_size` 0 Triton merges nothing, so that each request is a run of its own.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plain_servers.model import PlainModel

__all__ = ["TritonPythonModel"]


class TritonPythonModel:
    """A Triton model: TEXT in, LOGITS out."""

    def initialize(self, args: dict[str, str]) -> None:
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        parameters = json.loads(args["model_config"])["parameters"]
        values = {name: value["string_value"] for name, value in parameters.items()}
        padded = int(values["padded_length"]) or None
        self.model = PlainModel(Path(values["artifact"]), int(values["max_length"]), padded)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        tensor_of = self.triton.get_input_tensor_by_name
        texts = [tensor_of(request, "TEXT").as_numpy().ravel() for request in requests]
        logits = self.model.logits([text.decode() for each in texts for text in each])
        ends = np.cumsum([len(each) for each in texts])[:-1]
        return [self._response(part) for part in np.split(logits, ends)]

    def _response(self, logits: Any) -> Any:
        tensor = self.triton.Tensor("LOGITS", np.ascontiguousarray(logits))
        return self.triton.InferenceResponse(output_tensors=[tensor])
