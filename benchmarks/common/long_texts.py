"""Texts that fill the longest input of a latency benchmark, made of a task's own."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

from bertender.comparison.accuracy import text_lengths
from bertender.core.errors import DataError
from bertender.text.batch import Encode, Example

__all__ = ["LONG_TOKENS", "long_texts"]

LONG_TOKENS = 128


def long_texts(examples: Sequence[Example], encode: Encode, count: int) -> list[Example]:
    """Return `count` texts, each of several joined until the encoder cuts it off.

    Args:
        examples: texts of at least a token each, taken in turns.
        encode: a tokenizer that truncates at the required length.
        count: how many to make.

    Raises:
        DataError: there are no words to make them of.
    """
    full = text_lengths(encode, [tuple(" ".join(["a"] * LONG_TOKENS) for _ in examples[0])])[0]
    made: list[Example] = []
    words = ""
    for first, *others in islice(cycle(examples), count * full):
        words = f"{words} {first}".strip()
        if text_lengths(encode, [(words, *others)])[0] == full:
            made.append((words, *others))
            words = ""
        if len(made) == count:
            break
    if len(made) < count:
        raise DataError(
            f"{len(made)} texts of {full} tokens could be made, and {count} are required: "
            "the task's texts are empty. Give a task with words in its texts."
        )
    return made
