"""CTranslate2: it runs the encoder; the classification head, which it drops, is numpy's."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.converters import TransformersConverter
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from benchmarks.rivals.opening import Example, Opening, Predict, inputs_of
from benchmarks.rivals.probabilities import softmax

__all__ = ["HEADS", "open_ctranslate2"]

Weights = Mapping[str, Any]


def _linear(weights: Weights, name: str, inputs: Any) -> Any:
    return inputs @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def _bert(weights: Weights, output: Any) -> Any:
    return _linear(weights, "classifier", np.array(output.pooler_output))


def _distilbert(weights: Weights, output: Any) -> Any:
    first = np.array(output.last_hidden_state)[:, 0]  # (batch, hidden)
    return _linear(weights, "classifier", np.maximum(_linear(weights, "pre_classifier", first), 0))


HEADS: Mapping[str, Callable[[Weights, Any], Any]] = {"bert": _bert, "distilbert": _distilbert}
"""model_type -> (weights, output of the encoder) -> logits (batch, labels)"""
SEGMENTED = frozenset({"bert"})
"""Those whose encoder adds a vector for each of the two texts."""


def open_ctranslate2(opening: Opening) -> Predict:
    """Convert a torch model, and open its encoder in the compute type of the settings.

    Raises:
        ValueError: its classification head is not in HEADS, or CTranslate2 cannot convert its
            encoder.
    """
    config = json.loads((opening.folder / "config.json").read_text(encoding="utf-8"))
    if config["model_type"] not in HEADS:
        raise ValueError(f"no head for {config['model_type']} in numpy; known: {', '.join(HEADS)}")
    head, weights = HEADS[config["model_type"]], load_file(opening.folder / "model.safetensors")
    encoder = _encoder(opening)
    tokenizer = Tokenizer.from_file(str(opening.folder / "tokenizer.json"))
    tokenizer.enable_truncation(opening.max_length)
    tokenizer.no_padding()

    def predict(examples: Sequence[Example]) -> Any:
        encodings = tokenizer.encode_batch(inputs_of(examples))
        ids, segments = [each.ids for each in encodings], [each.type_ids for each in encodings]
        taken = {"token_type_ids": segments} if config["model_type"] in SEGMENTED else {}
        return softmax(head(weights, encoder.forward_batch(ids, **taken)))

    return predict


def _encoder(opening: Opening) -> Any:
    compute_type = opening.settings["compute_type"]
    with tempfile.TemporaryDirectory() as folder:
        converter = TransformersConverter(str(opening.folder))
        converter.convert(folder, quantization=compute_type, force=True)
        return ctranslate2.Encoder(
            folder,
            device="cpu",
            compute_type=compute_type,
            inter_threads=1,
            intra_threads=opening.threads,
        )
