"""ONNX Runtime alone: `PlainModel` in process."""

from __future__ import annotations

from benchmarks.plain_servers.model import PlainModel
from benchmarks.rivals.opening import Opening, Predict, inputs_of
from benchmarks.rivals.probabilities import softmax

__all__ = ["open_plain"]


def open_plain(opening: Opening) -> Predict:
    """Open an ONNX file with the tokenizer and ONNX Runtime, and nothing between."""
    model = PlainModel(opening.folder, opening.max_length, None, opening.threads)
    return lambda examples: softmax(model.logits(inputs_of(examples)))
