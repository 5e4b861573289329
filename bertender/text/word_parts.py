"""Parts of words, so that a text is read alike whether its words came apart or not.

A part is one punctuation mark or symbol, or a run of other characters. "Paris, France." and the
words "Paris" "," "France" "." have the same parts, and only parts are given to a tokenizer. A
tagger is trained on all parts: the first has the label of its word, and later ones continue it.

A tokenizer says in its settings whether words are read so, and by which labels later parts continue
others. Those of artifacts of earlier versions, and of finished models, do not: their words are
given to the tokenizer as they are.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

CONTINUED_LABELS = "continued_labels"
"""Of a tokenizer: for each label by number, the number of the label that later parts have."""

APART = ("P", "S")
"""First letters of the Unicode categories of punctuation marks and symbols."""
ATTACHED = ("M", "Cf")
"""Beginnings of those of marks and format characters, such as accents and joiners."""


def continued_labels(tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Sequence[int] | None:
    """Return which label continues each label; None where words are not read in parts."""
    settings = getattr(tokenizer, "init_kwargs", None)
    own = settings.get(CONTINUED_LABELS) if settings is not None else tokenizer.continued_labels
    return own or None


def part_starts(word: str) -> list[int]:
    """Return where the parts of a word begin, in characters; the first at 0.

    Marks and format characters belong to what stands before them.
    """
    if word.isalnum():
        return [0]
    return [*_starts(word)]


def _starts(word: str) -> Iterator[int]:
    after_apart = True
    for place, character in enumerate(word):
        category = unicodedata.category(character)
        if category.startswith(ATTACHED) and place:
            continue
        is_apart = category.startswith(APART)
        if is_apart or after_apart:
            yield place
        after_apart = is_apart
