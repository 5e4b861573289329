"""sentence-transformers: a classifier of pairs, in each of its backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers import CrossEncoder

from benchmarks.rivals.opening import Example, Opening, Predict, inputs_of

__all__ = ["open_cross_encoder"]


def open_cross_encoder(opening: Opening) -> Predict:
    """Open a model of pairs as a `CrossEncoder`, in the backend of the settings."""
    torch.set_num_threads(opening.threads)
    backend = opening.settings["backend"]
    model: Any = CrossEncoder(
        str(opening.folder),
        backend=backend,
        max_length=opening.max_length,
        device="cpu",
        local_files_only=True,
        model_kwargs=_settings_of(backend, opening.threads),
    )

    def predict(examples: Sequence[Example]) -> Any:
        return model.predict(
            inputs_of(examples),
            batch_size=len(examples),
            apply_softmax=True,
            show_progress_bar=False,
        )

    return predict


def _settings_of(backend: str, threads: int) -> dict[str, Any]:
    """Return what a backend needs to use so many threads."""
    if backend == "onnx":
        from onnxruntime import SessionOptions

        options = SessionOptions()
        options.intra_op_num_threads = threads
        settings = {"file_name": "model.onnx", "provider": "CPUExecutionProvider"}
        return {**settings, "session_options": options}
    if backend == "openvino":
        hints = {
            "INFERENCE_NUM_THREADS": str(threads),
            "ENABLE_HYPER_THREADING": "YES",  # or it takes one thread of each core's two
            "PERFORMANCE_HINT": "LATENCY",
        }
        return {"ov_config": hints}
    return {}
