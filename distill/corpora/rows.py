"""Rows of examples to pre-train on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from transformers import PreTrainedTokenizerBase

from distill.corpora.corpus import pack_rows
from distill.corpora.token_store import TokenRow

__all__ = ["RowBuilder", "packed_rows"]

RowBuilder = Callable[[Iterable[str], PreTrainedTokenizerBase, int, int], Iterator[TokenRow]]
"""(passages with an empty one between documents, tokenizer, most tokens, seed) -> rows"""


def packed_rows(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int, seed: int
) -> Iterator[TokenRow]:
    """Yield blocks of exactly `max_length` tokens that run over passages; nothing is drawn."""
    return pack_rows(passages, tokenizer, max_length)
