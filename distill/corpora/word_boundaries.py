"""Tokens of a vocabulary that continue a word, found by their marks.

WordPiece marks what continues ("##ing"); byte-level BPE and SentencePiece mark what begins ("Ġ"
and "▁" stand for the space before a word). Of the latter, a token of punctuation alone begins a
word of its own, although no space stands before it.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from bertender.core.errors import ModelError

__all__ = ["continues_word"]

Rule = Callable[[str], bool]
"""token -> whether it continues a word"""
Part = Mapping[str, Any]
"""The description of a tokenizer's model, pre-tokenizer or decoder."""

BYTE_LEVEL_SPACE = "Ġ"


def continues_word(tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """Return for each token of the vocabulary whether it continues a word: (vocab,), boolean.

    Raises:
        ModelError: the tokenizer marks neither beginnings nor continuations.
    """
    rule = _rule_of(tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return torch.tensor([rule(token) for token in tokens])


def _wordpiece(part: Part) -> Rule:
    prefix: str = part["continuing_subword_prefix"]
    return lambda token: token.startswith(prefix)


def _byte_level(part: Part) -> Rule:
    def continues(token: str) -> bool:
        # what is not ASCII stands for a byte of a longer character
        alone = token.isascii() and _is_punctuation(token)
        return not token.startswith(BYTE_LEVEL_SPACE) and not alone

    return continues


def _metaspace(part: Part) -> Rule:
    space: str = part["replacement"]
    return lambda token: not token.startswith(space) and not _is_punctuation(token)


RULES: Mapping[str, Callable[[Part], Rule]] = {
    "WordPiece": _wordpiece,
    "ByteLevel": _byte_level,
    "Metaspace": _metaspace,
}
"""By the type that the `tokenizers` library gives a part of a tokenizer."""


def _rule_of(tokenizer: PreTrainedTokenizerBase) -> Rule:
    parts = list(_parts(tokenizer)) if isinstance(tokenizer, PreTrainedTokenizerFast) else []
    for part in parts:
        if part["type"] in RULES:
            return RULES[part["type"]](part)
    kinds = ", ".join(part["type"] for part in parts) or type(tokenizer).__name__
    raise ModelError(
        f"this tokenizer ({kinds}) does not mark where a word begins, so that no whole word can be "
        f"masked. Choose an objective that masks single tokens, or a tokenizer of these kinds: "
        f"{', '.join(RULES)}."
    )


def _parts(tokenizer: PreTrainedTokenizerFast) -> Iterator[Part]:
    description = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("model", "pre_tokenizer", "decoder"):
        part = description[name] or {"type": "none"}
        # a sequence holds its parts under "pretokenizers" or "decoders"
        yield from next((inner for inner in part.values() if _is_parts(inner)), [part])


def _is_parts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, dict) and "type" in v for v in value)


def _is_punctuation(token: str) -> bool:
    return all(unicodedata.category(letter)[0] in "PS" for letter in token)
