"""A classifier in ONNX Runtime, as most endpoints have it: tokenise, pad, run.

Nothing of bertender is in it, so that it is what it would be without.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
import tokenizers

__all__ = ["PlainModel"]


class PlainModel:
    """Texts to logits, all of a call in one run.

    Args:
        artifact: folder with model.onnx and tokenizer.json.
        max_length: tokens that a text is cut at.
        padded_length: tokens that every text is padded to; None for the longest of the call.
    """

    def __init__(self, artifact: Path, max_length: int, padded_length: int | None) -> None:
        threads = len(os.sched_getaffinity(0))
        os.environ["RAYON_NUM_THREADS"] = str(threads)
        self.tokenizer = tokenizers.Tokenizer.from_file(str(artifact / "tokenizer.json"))
        self.tokenizer.enable_truncation(max_length)
        pad = _pad_token(artifact)
        self.tokenizer.enable_padding(
            length=padded_length, pad_id=self.tokenizer.token_to_id(pad) or 0, pad_token=pad
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(
            str(artifact / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.inputs = [node.name for node in self.session.get_inputs()]

    def logits(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return the logits (batch, labels) of some texts."""
        encodings = self.tokenizer.encode_batch(list(texts))
        arrays = {
            "input_ids": [each.ids for each in encodings],
            "attention_mask": [each.attention_mask for each in encodings],
            "token_type_ids": [each.type_ids for each in encodings],
        }
        taken = {name: np.array(arrays[name], np.int64) for name in self.inputs}
        return np.asarray(self.session.run(["logits"], taken)[0], np.float32)


def _pad_token(artifact: Path) -> str:
    """Return the padding token: some models count positions by it."""
    config = json.loads((artifact / "tokenizer_config.json").read_text(encoding="utf-8"))
    token = config.get("pad_token", "[PAD]")
    return str(token["content"] if isinstance(token, dict) else token)
