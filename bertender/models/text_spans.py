"""Where the texts of an example stand among its tokens, for models that read each text apart.

Where the first one ends is read from the tokens: every tokenizer of FAMILIES ends an example with
the separator that also stands between its texts. A separator that a user writes into a text of a
pair is taken for that one.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

__all__ = ["JOINED", "Spans", "joined", "spans_of_pairs"]

JOINED = {1: 1, 2: 4}
"""Texts of an example -> how many vectors of a text's width the classifier reads."""


class Spans(NamedTuple):
    """Positions of a text in each example."""

    starts: torch.Tensor
    """(batch,)"""
    lengths: torch.Tensor
    """(batch,), at least 1"""


def joined(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return two texts' vectors (batch, width) as [u, v, u * v, |u - v|], (batch, 4 width)."""
    return torch.cat([first, second, first * second, (first - second).abs()], dim=-1)


def spans_of_pairs(input_ids: torch.Tensor, mask: torch.Tensor) -> tuple[Spans, Spans]:
    """Return both texts of pairs, each with the separator that ends it and without what is before.

    BERT writes [CLS] a [SEP] b [SEP] and RoBERTa <s> a </s></s> b </s>.
    """
    lengths = mask.sum(1)
    separator = input_ids.gather(1, lengths[:, None] - 1)
    separators = (input_ids == separator) & (mask > 0)  # (batch, seq)
    end = separators.int().argmax(1)
    after = (end + 1).clamp(max=input_ids.shape[1] - 1)
    doubled = separators.gather(1, after[:, None])[:, 0] & (after + 1 < lengths)
    second = torch.minimum(end + 1 + doubled.long(), lengths - 1)
    first = torch.minimum(torch.ones_like(end), lengths - 1)  # of one token, that one
    return Spans(first, end.clamp(min=1)), Spans(second, lengths - second)
