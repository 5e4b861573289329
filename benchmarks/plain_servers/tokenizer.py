"""The tokenizer of an artifact, as most endpoints have it. Nothing of bertender is in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import tokenizers

__all__ = ["PlainTokenizer"]


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
        pad = _pad_token(artifact)
        self.tokenizer.enable_padding(
            length=padded_length, pad_id=self.tokenizer.token_to_id(pad) or 0, pad_token=pad
        )

    def arrays(self, texts: Sequence[str | tuple[str, ...]]) -> dict[str, npt.NDArray[np.int64]]:
        """Return the inputs (batch, seq) of some texts, or pairs of them, by name."""
        encodings = self.tokenizer.encode_batch(list(texts))
        return {
            "input_ids": np.array([each.ids for each in encodings], np.int64),
            "attention_mask": np.array([each.attention_mask for each in encodings], np.int64),
            "token_type_ids": np.array([each.type_ids for each in encodings], np.int64),
        }


def _pad_token(artifact: Path) -> str:
    """Return the padding token: some models count positions by it."""
    config = json.loads((artifact / "tokenizer_config.json").read_text(encoding="utf-8"))
    token = config.get("pad_token", "[PAD]")
    return str(token["content"] if isinstance(token, dict) else token)
