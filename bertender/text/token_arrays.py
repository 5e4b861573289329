"""Tokens of texts to arrays of equal lengths: cut to what a model takes, padded to the longest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["CutEncoding", "Padding", "TokenArrays", "cut_encoding", "pair_arrays"]

IntArray = npt.NDArray[np.int64]

SPECIAL = -1
"""Instead of the number of a text: the token is in none, but was put around them."""


@dataclass(frozen=True)
class Padding:
    """The padding of the shorter texts of a batch: its tokens, and the side."""

    side: str = "right"
    type_id: int = 0
    token_id: int = 0


@dataclass(frozen=True)
class CutEncoding:
    """The tokens of a text, or of a pair of texts, that a model takes."""

    ids: IntArray
    type_ids: IntArray
    words: Sequence[int | None]
    overflowing: bool
    """More tokens were cut off."""


def cut_encoding(encoding: Encoding, max_length: int, side: str) -> CutEncoding:
    """Return the tokens that a model takes of a text or a pair; of a pair, the longer is cut first.

    Args:
        encoding: all tokens, those included that are put around texts and are never cut.
        max_length: most of them.
        side: where a text is cut, left or right.
    """
    ids, type_ids = np.array(encoding.ids, np.int64), np.array(encoding.type_ids, np.int64)
    if len(ids) <= max_length:
        return CutEncoding(ids, type_ids, encoding.word_ids, overflowing=False)
    texts = np.array([SPECIAL if text is None else text for text in encoding.sequence_ids])
    places = _remaining(texts, max_length, side)
    words = encoding.word_ids
    return CutEncoding(ids[places], type_ids[places], [words[place] for place in places], True)


class TokenArrays(dict[str, IntArray]):
    """Token arrays (batch, seq) by name, and the encodings that they are made of."""

    def __init__(self, encodings: Sequence[CutEncoding], padding: Padding) -> None:
        self.encodings = encodings
        self.padding = padding
        self.lengths = [len(each.ids) for each in encodings]
        super().__init__(
            input_ids=self._padded([each.ids for each in encodings], padding.token_id),
            token_type_ids=self._padded([each.type_ids for each in encodings], padding.type_id),
            attention_mask=self._padded([1] * len(encodings), 0),
        )

    def word_ids(self, row: int) -> list[int | None]:
        """Return the word of each token of a row; None for special tokens and padding."""
        words = list(self.encodings[row].words)
        missing: list[int | None] = [None] * (max(self.lengths) - len(words))
        return missing + words if self.padding.side == "left" else words + missing

    def _padded(self, rows: Sequence[IntArray | int], fill: int) -> IntArray:
        longest = max(self.lengths)
        array = np.full((len(rows), longest), fill, np.int64)
        for row, (values, length) in enumerate(zip(rows, self.lengths, strict=True)):
            start = longest - length if self.padding.side == "left" else 0
            array[row, start : start + length] = values
        return array


def pair_arrays(
    tokenizer: PreTrainedTokenizerBase, columns: Sequence[list[str]], max_length: int
) -> TokenArrays:
    """Return the arrays (batch, seq) of pairs of texts, which are cut here.

    Where `tokenizers` cuts a pair, it also returns every pair of the parts that are cut off, which
    takes gigabytes for two texts of 32 KB.

    Args:
        tokenizer: of transformers, a fast one with a padding token.
        columns: the first texts, and the second ones.
        max_length: more tokens are cut.
    """
    # a warning of what is longer than the model's input would be wrong
    tokens = tokenizer(*columns, truncation=False, padding=False, verbose=False)
    assert tokens.encodings is not None
    cut = [cut_encoding(each, max_length, tokenizer.truncation_side) for each in tokens.encodings]
    padding = Padding(tokenizer.padding_side, tokenizer.pad_token_type_id, tokenizer.pad_token_id)
    arrays = TokenArrays(cut, padding)
    for name in {*arrays} - {*tokens}:  # those that the model does not read
        del arrays[name]
    return arrays


def _remaining(texts: IntArray, max_length: int, side: str) -> IntArray:
    """Return the places of the tokens that remain, given the text that each token is in."""
    room = max(0, max_length - int((texts == SPECIAL).sum()))
    own = [np.flatnonzero(texts == number) for number in (0, 1)]
    first, second = _longest_first(len(own[0]), len(own[1]), room)
    cut = SIDES[side]
    parts = (np.flatnonzero(texts == SPECIAL), cut(own[0], first), cut(own[1], second))
    return np.sort(np.concatenate(parts))


SIDES: dict[str, Callable[[IntArray, int], IntArray]] = {
    "left": lambda places, count: places[len(places) - count :],
    "right": lambda places, count: places[:count],
}


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens remain of each text of a pair, in `tokenizers`' way.

    The longer one is cut to the length of the other, then both alike; of an odd number, the text
    that was longer has one more, the second where they were equal.
    """
    shorter, longer = sorted((first, second))
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return (longer, shorter) if first > second else (shorter, longer)
