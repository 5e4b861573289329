"""A classifier in ONNX Runtime as most endpoints have it, behind Triton and behind FastAPI.

It tokenises, pads and runs, without any code of bertender. Triton's Python backend runs what Triton
has merged at once; with `max_batch_size` 0 Triton merges nothing. FastAPI runs each request on its
own, padded to its longest text.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import tokenizers
from pydantic import BaseModel

ARTIFACT_VARIABLE, LENGTH_VARIABLE = "PLAIN_MODEL_ARTIFACT", "PLAIN_MODEL_MAX_LENGTH"
"""Environment variables that name the model of a server process."""


class PlainTokenizer:
    """Texts to the arrays of a graph.

    Args:
        artifact: folder with tokenizer.json.
        max_length: tokens that a text is cut at.
        padded_length: tokens that every text is padded to; None for the longest of the call.
    """

    def __init__(self, artifact: Path, max_length: int, padded_length: int | None = None) -> None:
        self.tokenizer = tokenizers.Tokenizer.from_file(str(artifact / "tokenizer.json"))
        self.tokenizer.enable_truncation(max_length)
        config = json.loads((artifact / "tokenizer_config.json").read_text(encoding="utf-8"))
        token = config.get("pad_token", "[PAD]")
        # some models count positions by the padding token
        pad = str(token["content"] if isinstance(token, dict) else token)
        number = self.tokenizer.token_to_id(pad) or 0
        self.tokenizer.enable_padding(length=padded_length, pad_id=number, pad_token=pad)

    def arrays(self, texts: Sequence[str | tuple[str, ...]]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the inputs (batch, seq) of some texts, or pairs of them, by name."""
        encodings = self.tokenizer.encode_batch(list(texts))
        return {
            "input_ids": np.array([each.ids for each in encodings], np.int64),
            "attention_mask": np.array([each.attention_mask for each in encodings], np.int64),
            "token_type_ids": np.array([each.type_ids for each in encodings], np.int64),
        }


class PlainModel:
    """Texts to logits, all of a call in one run.

    Args:
        artifact: folder with model.onnx and tokenizer.json.
        max_length: tokens that a text is cut at.
        padded_length: tokens that every text is padded to; None for the longest of the call.
        threads: of a run; 0 for the cores that this process may use.
    """

    def __init__(
        self, artifact: Path, max_length: int, padded_length: int | None = None, threads: int = 0
    ) -> None:
        threads = threads or len(os.sched_getaffinity(0))
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        self.tokenizer = PlainTokenizer(artifact, max_length, padded_length)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            str(artifact / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [node.name for node in self.session.get_inputs()]

    def logits(self, texts: Sequence[str | tuple[str, ...]]) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of some texts, or pairs of them."""
        arrays = self.tokenizer.arrays(texts)
        taken = {name: arrays[name] for name in self.inputs}
        return np.asarray(self.session.run(["logits"], taken)[0], np.float32)


class TritonPythonModel:
    """A model of Triton's Python backend: TEXT in, LOGITS out."""

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


class Texts(BaseModel):
    """A request."""

    texts: list[str]


class Predictions(BaseModel):
    """Its response."""

    logits: list[list[float]]


def fastapi_app() -> Any:
    """Build the application of FastAPI."""
    from fastapi import FastAPI  # not installed beside Triton's stub

    model = PlainModel(Path(os.environ[ARTIFACT_VARIABLE]), int(os.environ[LENGTH_VARIABLE]))
    served = FastAPI()

    @served.get("/ready")
    def ready() -> bool:
        return True

    @served.post("/classify")
    def classify(request: Texts) -> Predictions:  # not async: FastAPI runs it on a thread
        return Predictions(logits=model.logits(request.texts).tolist())

    return served
