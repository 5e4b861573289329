"""Optimum: an ONNX file behind transformers' pipeline."""

from __future__ import annotations

import onnxruntime
import torch
from optimum.onnxruntime import ORTModelForSequenceClassification

from benchmarks.rivals.opening import Opening, Predict
from benchmarks.rivals.transformers_models import in_pipeline

__all__ = ["open_optimum"]


def open_optimum(opening: Opening) -> Predict:
    """Open an ONNX file in ONNX Runtime, in `pipeline("text-classification")`."""
    torch.set_num_threads(opening.threads)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = opening.threads
    model = ORTModelForSequenceClassification.from_pretrained(
        opening.folder, session_options=options
    )
    return in_pipeline(model, opening)
