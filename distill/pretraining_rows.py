"""Rows of examples to pre-train on, and the data set that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from bertender.core.errors import DataError
from bertender.core.examples import TokenDataset
from distill.corpus import pack

__all__ = ["Row", "RowBuilder", "in_memory", "packed_rows"]

Row = Mapping[str, Any]
"""The columns of one example: token columns are sequences, labels are numbers."""
RowBuilder = Callable[[Iterable[str], PreTrainedTokenizerBase, int, int], Iterator[Row]]
"""(passages with an empty one between documents, tokenizer, most tokens, seed) -> rows"""


def packed_rows(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, max_length: int, seed: int
) -> Iterator[Row]:
    """Yield blocks of exactly `max_length` tokens that run over passages; nothing is drawn."""
    blocks = pack(passages, tokenizer, max_length)
    return (blocks[index] for index in range(len(blocks)))


def in_memory(rows: Iterable[Row], pad_token_id: int) -> TokenDataset:
    """Return rows as a data set.

    Raises:
        DataError: there are none.
    """
    kept = list(rows)
    if not kept:
        raise DataError("the corpus is too short for a single example. Give a longer one.")
    return TokenDataset({name: [row[name] for row in kept] for name in kept[0]}, pad_token_id)
