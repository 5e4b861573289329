"""LitServe around `PlainModel`: requests that wait together are one run.

    python -m benchmarks.rivals.litserve_app PORT

Its settings are variables of the environment, as those of `fastapi_app`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import litserve
import numpy as np

from benchmarks.rivals.plain_model import ARTIFACT_VARIABLE, LENGTH_VARIABLE, PlainModel

__all__ = ["main"]

REQUESTS = 64
"""Of a run, at most; it waits for none, as Triton's batcher does by default."""


class TextsApi(litserve.LitAPI):  # type: ignore[misc]  # it has no types
    """A LitServe model: {"texts": [...]} in, {"logits": [...]} out."""

    def setup(self, device: str) -> None:
        """Open the model in the worker process."""
        artifact, longest = os.environ[ARTIFACT_VARIABLE], int(os.environ[LENGTH_VARIABLE])
        self.model = PlainModel(Path(artifact), longest, None)

    def decode_request(self, request: dict[str, Any], **more: Any) -> list[str]:
        return list(request["texts"])

    def batch(self, inputs: Sequence[list[str]]) -> Sequence[list[str]]:
        return inputs

    def predict(self, x: Sequence[list[str]], **more: Any) -> list[Any]:
        """Return the logits of each request."""
        logits = self.model.logits([text for texts in x for text in texts])
        return np.split(logits, np.cumsum([len(texts) for texts in x])[:-1])

    def encode_response(self, output: Any, **more: Any) -> dict[str, Any]:
        return {"logits": output.tolist()}


def main() -> None:
    server = litserve.LitServer(
        TextsApi(max_batch_size=REQUESTS, api_path="/classify"), accelerator="cpu", devices=1
    )
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False
    )


if __name__ == "__main__":
    main()
