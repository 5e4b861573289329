"""WORKLOADS: the texts that are sent to servers, at their own lengths or of a long-tailed mix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import DataError

__all__ = ["LONGEST_TOKENS", "WORKLOADS", "TextLengths", "Workload", "lengths_of"]

LONGEST_TOKENS = 256
LONG_TAILED_TEXTS = 1000
MEDIAN_TOKENS, SPREAD = 24.0, 1.0
"""Of a log-normal distribution, the usual shape of lengths of texts that users write."""

Count = Callable[[str], int]
"""text -> its tokens"""


class TextLengths(Record):
    """Lengths of the texts of a workload, in tokens."""

    texts: int
    median: float
    p95: float
    longest: int
    rounded: int = Field(description="the longest, rounded up")


@dataclass(frozen=True)
class Workload:
    """A row of WORKLOADS."""

    title: str
    make: Callable[[Sequence[str], Count, int], list[str]]
    """(texts of the task, count, longest input of the model) -> texts to send"""


def _natural(texts: Sequence[str], count: Count, longest: int) -> list[str]:
    return [text for text in texts if count(text) <= longest]


def _long_tailed(texts: Sequence[str], count: Count, longest: int) -> list[str]:
    """Join texts until each has a length that is drawn."""
    draw = np.random.default_rng(0)
    most = min(longest, LONGEST_TOKENS)
    lengths = np.exp(draw.normal(np.log(MEDIAN_TOKENS), SPREAD, LONG_TAILED_TEXTS))
    stream = _words(texts, draw)
    return [_joined(stream, count, int(min(max(length, 4), most))) for length in lengths]


def _words(texts: Sequence[str], draw: np.random.Generator) -> Iterator[str]:
    """Yield the words of texts that are drawn, for ever."""
    while True:
        yield from texts[int(draw.integers(len(texts)))].split()


def _joined(words: Iterator[str], count: Count, tokens: int) -> str:
    """Return words of so many tokens together, or of a few less."""
    text = next(words)
    for word in words:
        longer = f"{text} {word}"
        if count(longer) > tokens:
            return text
        text = longer
    raise DataError("the task has no words")  # _words goes on for ever


WORKLOADS = {
    "natural": Workload("natural length", _natural),
    "long-tailed": Workload(f"long-tailed mix to {LONGEST_TOKENS} tokens", _long_tailed),
}


def lengths_of(texts: Sequence[str], count: Count) -> TextLengths:
    """Return the lengths of some texts."""
    lengths = np.array([count(text) for text in texts])
    longest = int(lengths.max())
    return TextLengths(
        texts=len(texts),
        median=float(np.median(lengths)),
        p95=float(np.percentile(lengths, 95)),
        longest=longest,
        rounded=8 * -(-longest // 8),
    )
