"""LitServe around `PlainModel`: requests that wait together are one run.

    python -m benchmarks.litserve_app PORT

Its settings are variables of the environment, as for `fastapi_app`.
"""

import sys
from collections.abc import Sequence
from typing import Any

import litserve
import numpy as np

from benchmarks.plain_servers import PlainModel, Predictions, Texts

REQUESTS = 64
"""Most requests of a run."""
WAIT_S = 0.001
"""Wait for more requests. With 0 the worker spins, and takes the core from the server before it."""


class TextsApi(litserve.LitAPI):  # type: ignore[misc]  # it has no types
    """A LitServe model; the annotations are its schema."""

    def setup(self, device: str) -> None:
        """Open the model in the worker process."""
        self.model = PlainModel.of_environment()

    def decode_request(self, request: Texts) -> list[str]:
        return request.texts

    def batch(self, inputs: Sequence[list[str]]) -> Sequence[list[str]]:
        return inputs

    def predict(self, x: Sequence[list[str]]) -> list[Any]:
        """Return the logits of each request."""
        logits = self.model.logits([text for texts in x for text in texts])
        return np.split(logits, np.cumsum([len(texts) for texts in x])[:-1])

    def encode_response(self, output: Any) -> Predictions:
        return Predictions(logits=output.tolist())


if __name__ == "__main__":
    litserve.LitServer(
        TextsApi(max_batch_size=REQUESTS, batch_timeout=WAIT_S, api_path="/classify"),
        accelerator="cpu",
        devices=1,
    ).run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
