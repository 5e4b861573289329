"""A model for Triton's Python backend that computes nothing: what a request costs without a model.

It has the outputs that `bertender serve` gives to a request that asks for truncation. By the
parameter `sent`, a response is returned by the call that brings its request, or is sent by another
thread, as `bertender serve` does.
"""

from __future__ import annotations

import importlib
import json
import queue
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["TritonPythonModel"]


class TritonPythonModel:
    """A Triton model: TEXT in; LABEL, SCORE, LOGITS and TRUNCATED out, always the same."""

    def initialize(self, args: dict[str, str]) -> None:
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        parameters = json.loads(args["model_config"])["parameters"]
        self.sent = parameters["sent"]["string_value"] == "true"
        self.waiting = queue.SimpleQueue[tuple[Any, Any]]()
        threading.Thread(target=self._work, daemon=True).start()

    def execute(self, requests: Sequence[Any]) -> list[Any] | None:
        if not self.sent:
            return [self._response(request) for request in requests]
        for request in requests:
            self.waiting.put((request.get_response_sender(), self._response(request)))
        return None

    def _work(self) -> None:
        final = self.triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        while True:
            sender, response = self.waiting.get()
            sender.send(response, flags=final)

    def _response(self, request: Any) -> Any:
        texts = len(self.triton.get_input_tensor_by_name(request, "TEXT").as_numpy())
        outputs = {
            "LABEL": np.full((texts, 1), b"positive", np.object_),
            "SCORE": np.zeros((texts, 1), np.float32),
            "LOGITS": np.zeros((texts, 2), np.float32),
            "TRUNCATED": np.zeros((texts, 1), np.bool_),
        }
        tensors = [self.triton.Tensor(name, array) for name, array in outputs.items()]
        return self.triton.InferenceResponse(output_tensors=tensors)
