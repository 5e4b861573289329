"""sentence-transformers: a classifier as a CrossEncoder, in one of its backends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from sentence_transformers import CrossEncoder

from benchmarks.rivals.opening import Opening, Predict

__all__ = ["open_onnx", "open_openvino"]


def open_onnx(opening: Opening) -> Predict:
    """Open an ONNX file in its ONNX backend."""
    import onnxruntime  # here: the environment of the other backend has none

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = opening.threads
    return _opened(
        opening, "onnx", {"provider": "CPUExecutionProvider", "session_options": options}
    )


def open_openvino(opening: Opening) -> Predict:
    """Open a torch model in its OpenVINO backend, which converts it."""
    config = {"INFERENCE_NUM_THREADS": opening.threads, "PERFORMANCE_HINT": "LATENCY"}
    return _opened(opening, "openvino", {"ov_config": config})


def _opened(opening: Opening, backend: Any, settings: dict[str, Any]) -> Predict:
    torch.set_num_threads(opening.threads)
    model = CrossEncoder(
        str(opening.folder),
        backend=backend,
        device="cpu",
        local_files_only=True,
        max_length=opening.max_length,
        model_kwargs=settings,
    )

    def predict(texts: Sequence[str]) -> Any:
        inputs: Any = [[text] for text in texts]  # a list of strings would be one pair
        return model.predict(
            inputs, batch_size=len(texts), apply_softmax=True, show_progress_bar=False
        )

    return predict
