"""Words of a text and of a vocabulary, and which of them may be replaced."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from transformers import PreTrainedTokenizerBase

from bertender.core.errors import ModelError

# --- from distill.augmentation.words
# The words of a text, where they stand in it, and which of them may be replaced.

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


# --- from distill.augmentation.whole_words
# The tokens of a tokenizer's vocabulary that are words by themselves.


@dataclass(frozen=True)
class WholeWords:
    """Words of at least two letters, by the id of their only token."""

    words: Mapping[int, str]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Find them: what an id decodes to must come back, after a space, as this id alone.

        So a token that continues a word is not one, however an architecture marks such tokens.

        Raises:
            ModelError: there are fewer than two, or the tokenizer has no offsets of its tokens.
        """
        if not tokenizer.is_fast:
            raise ModelError(
                f"the tokenizer of {tokenizer.name_or_path} has no offsets of its tokens in "
                "a text. Augmentation needs one with a tokenizer.json."
            )
        decoded = tokenizer.batch_decode([[number] for number in range(len(tokenizer))])
        words = [word.strip() for word in decoded]
        letters = {n: word for n, word in enumerate(words) if len(word) > 1 and word.isalpha()}
        each = zip(letters.items(), _tokens(tokenizer, letters.values()), strict=True)
        whole = cls({number: word for (number, word), ids in each if ids == [number]})
        if len(whole.words) < 2:
            raise ModelError(
                f"the vocabulary of {tokenizer.name_or_path} has {len(whole.words)} tokens that "
                "are words. Augmentation needs one of whole words."
            )
        return whole

    @property
    def ids(self) -> torch.Tensor:
        """The ids in ascending order, (words,)."""
        return torch.tensor(sorted(self.words))

    def numbered(self, words: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
        """Return the id of each of some words that is a single token; others are left out."""
        each = list(words)
        pairs = zip(each, _tokens(tokenizer, each), strict=True)
        return {word: ids[0] for word, ids in pairs if len(ids) == 1 and ids[0] in self.words}


def _tokens(tokenizer: PreTrainedTokenizerBase, words: Iterable[str]) -> list[list[int]]:
    """Return the ids of each word as it stands inside a text."""
    spaced = [f" {word}" for word in words]
    if not spaced:
        return []
    ids: list[list[int]] = tokenizer(spaced, add_special_tokens=False)["input_ids"]
    return ids
