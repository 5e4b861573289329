"""Patterns of attention, and its share on special tokens and punctuation.

The patterns are those of Kovaleva et al. 2019 (arXiv 1908.08593, section 4.1). They trained a
classifier on maps labelled by people; here rules decide:

- vertical: the two most attended tokens have most of the attention
- diagonal: a token and its two neighbours have
- vertical + diagonal: neither alone has, but both together
- block: in a pair of texts, the tokens of the own text have
- heterogeneous: none of these

"Most" is half of what is beyond uniform attention: (share - u) / (1 - u) >= 0.5, where u is the
share of uniform attention over as many tokens. So a short text has no pattern by its length alone.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

PATTERNS = ("vertical", "diagonal", "vertical + diagonal", "block", "heterogeneous")
COLUMNS = 2
"""Tokens in a vertical pattern, such as [CLS] and [SEP]."""
MOST = 0.5
FEWEST_TOKENS = 5
"""Fewest tokens of a text with a pattern, including special tokens."""
WORD_MARKS = "#▁Ġ"
"""Marks of tokenizers at the beginning of a token that begins or continues a word."""


def patterns(attention: FloatArray, texts: IntArray) -> IntArray:
    """Return the pattern of each head on a text, (heads,), as an index in PATTERNS.

    Args:
        attention: probabilities (heads, seq, seq), whose rows sum to 1; no padding.
        texts: (seq,): number of the text in a pair that a token belongs to; constant for one text.
    """
    size = len(texts)
    places = np.arange(size)
    near = np.abs(places[:, None] - places) <= 1  # (seq, seq)
    columns = attention.mean(axis=-2)  # (heads, seq)
    largest = np.argsort(-columns, axis=-1, kind="stable")[:, :COLUMNS]
    attended = np.zeros(columns.shape, dtype=bool)
    np.put_along_axis(attended, largest, True, axis=-1)
    column = np.broadcast_to(attended[:, None, :], attention.shape)
    vertical = beyond_uniform(attention, column)
    diagonal = beyond_uniform(attention, np.broadcast_to(near, attention.shape))
    both = beyond_uniform(attention, column | near)
    own = np.broadcast_to(texts[:, None] == texts, attention.shape)
    block = beyond_uniform(attention, own)
    return np.select(
        [
            (vertical >= MOST) & (vertical >= diagonal),
            diagonal >= MOST,
            both >= MOST,
            block >= MOST,
        ],
        [0, 1, 2, 3],
        default=4,
    )


def beyond_uniform(attention: FloatArray, cells: BoolArray) -> FloatArray:
    """Return the share of attention in some cells beyond uniform attention, (heads,): 0 for uniform
    attention, 1 if all attention is in these cells.

    Args:
        attention: (heads, seq, seq).
        cells: the same shape.
    """
    share = (attention * cells).sum(axis=-1).mean(axis=-1)
    uniform = cells.mean(axis=(-2, -1))
    # if these are all cells, nothing is beyond
    left = 1 - uniform
    return np.asarray(np.divide(share - uniform, left, out=np.zeros_like(share), where=left > 0))


def attention_on(attention: FloatArray, tokens: Mapping[str, BoolArray]) -> dict[str, FloatArray]:
    """Return the share of each head's attention on kinds of tokens, (heads,) each.

    Args:
        attention: (heads, seq, seq).
        tokens: whether each token is of a kind, (seq,), by name of the kind.
    """
    columns = attention.mean(axis=-2)  # (heads, seq)
    return {name: columns[:, own].sum(axis=-1) for name, own in tokens.items()}


def texts_of(is_separator: BoolArray) -> IntArray:
    """Return the number of the text in a pair that a token belongs to, (seq,): 0 up to the first
    separator, 1 after it."""
    before: IntArray = np.cumsum(is_separator) - is_separator
    return np.asarray(np.minimum(before, 1), dtype=np.int64)


def is_punctuation(token: str) -> bool:
    """Return whether a token, as spelled by the tokenizer, consists of punctuation."""
    letters = token.lstrip(WORD_MARKS) or token
    return all(unicodedata.category(each).startswith("P") for each in letters)
