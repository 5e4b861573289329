"""Another Triton model as a predictor: business logic scripting (BLS) of the Python backend."""

from __future__ import annotations

import importlib

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.text.batch import Batch
from serve.served_runtimes import Opening

__all__ = ["ENCODER_OUTPUT", "EncoderPredictor"]

ENCODER_OUTPUT = "logits"


class EncoderPredictor:
    """A Triton model that takes token arrays and returns logits; several threads may call it.

    It cannot run before Triton has loaded all models, which is after `initialize`.

    Args:
        opening: the model's name and inputs.
    """

    def __init__(self, opening: Opening) -> None:
        self.triton = importlib.import_module("triton_python_backend_utils")  # only in the stub
        self.model = opening.encoder
        self.inputs = opening.encoder_inputs
        # arrays of numpy are wanted, wherever the model runs
        self.memory = self.triton.PreferredMemory(self.triton.TRITONSERVER_MEMORY_CPU, 0)

    def logits(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of a batch.

        Raises:
            ModelError: the model cannot run it, or is not loaded.
        """
        response = self.triton.InferenceRequest(
            model_name=self.model,
            requested_output_names=[ENCODER_OUTPUT],
            inputs=[self.triton.Tensor(name, batch.arrays[name]) for name in self.inputs],
            preferred_memory=self.memory,
        ).exec()
        if response.has_error():
            raise ModelError(f"model {self.model!r}: {response.error().message()}")
        tensor = self.triton.get_output_tensor_by_name(response, ENCODER_OUTPUT)
        # a copy: the response's memory goes with the response
        return np.array(tensor.as_numpy(), dtype=np.float32)
