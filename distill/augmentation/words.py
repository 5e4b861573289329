"""The words of a text, where they stand in it, and which of them may be replaced."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

__all__ = ["STOP_WORDS", "Span", "replaceable_words", "with_words", "word_spans"]

Span = tuple[int, int]
"""Where a word begins in its text and where it ends, in characters."""

WORD = re.compile(r"\w+(?:['’]\w+)*")  # noqa: RUF001  # a typographic apostrophe is meant

FORMS_OF_DO = frozenset(("did", "does", "doing", "don", "didn", "doesn"))
CONTRACTED = frozenset(("ca", "ll", "re", "sha", "ve", "wo"))
"""Parts of words where treebanks cut contractions: they 'll, ca n't."""

STOP_WORDS = ENGLISH_STOP_WORDS | FORMS_OF_DO | CONTRACTED
"""scikit-learn's list, and what it lacks."""


def word_spans(text: str) -> list[Span]:
    """Return where the words stand: runs of letters and digits; an apostrophe inside joins them."""
    return [match.span() for match in WORD.finditer(text)]


def replaceable_words(text: str) -> list[Span]:
    """Return the words of at least two letters and nothing else that are not stop words."""
    return [span for span in word_spans(text) if _is_replaceable(text[slice(*span)])]


def with_words(text: str, words: Mapping[Span, str]) -> str:
    """Return the text with other words at some spans; what lies between stays as it is."""
    parts, place = [], 0
    for (start, end), word in sorted(words.items()):
        parts += [text[place:start], word]
        place = end
    return "".join((*parts, text[place:]))


def _is_replaceable(word: str) -> bool:
    return len(word) > 1 and word.isalpha() and word.lower() not in STOP_WORDS
