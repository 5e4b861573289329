"""Sentences of words on their way into a model: tokens, and which word each begins.

The first token of a word predicts its label; its other tokens and special tokens predict nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from bertender.text.batch import NO_WORD, Batch, Tokenize, longest_input, truncated_rows
from bertender.text.example import Example, to_examples

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

__all__ = ["TokenizeWords", "begun_words", "encode_words", "keep_words", "tokens_of_words"]


def encode_words(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Example],
    max_length: int | None = None,
    **settings: Any,
) -> BatchEncoding:
    """Tokenise sentences that are split into words.

    Args:
        tokenizer: a fast one, which has the word of each token (`word_ids`).
        sentences: words.
        max_length: longer sentences are cut to so many tokens; by default, and at most, to what
            the tokenizer allows.
        settings: more of the tokenizer's own (padding, kind of tensors).
    """
    tokens: BatchEncoding = tokenizer(
        [list(sentence) for sentence in sentences],
        is_split_into_words=True,
        truncation=True,
        max_length=min(max_length or longest_input(tokenizer), longest_input(tokenizer)),
        **settings,
    )
    return tokens


def begun_words(word_ids: Sequence[int | None]) -> list[int | None]:
    """Return the word that each token begins; None for other tokens and special tokens."""
    pairs = pairwise((None, *word_ids))
    return [word if word != before else None for before, word in pairs]


def tokens_of_words(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """Return the numbers of the tokens of each word, without special tokens, of any length.

    Args:
        tokenizer: a fast one, which has the word of each token.
        sentences: words.
    """
    tokens = tokenizer(
        [list(sentence) for sentence in sentences],
        is_split_into_words=True,
        add_special_tokens=False,
        verbose=False,  # no word about inputs longer than the model takes
    )
    by_sentence: list[list[list[int]]] = [[[] for _ in sentence] for sentence in sentences]
    for row, words in enumerate(by_sentence):
        for token, word in zip(tokens["input_ids"][row], tokens.word_ids(row), strict=True):
            assert word is not None  # only special tokens are of no word
            words[word].append(token)
    return by_sentence


class TokenizeWords(Tokenize):
    """Encode sentences that are split into words; the batch has the first token of each word."""

    def __call__(self, examples: Sequence[Example]) -> Batch:
        sentences = _to_sentences(examples)
        tokens = encode_words(
            self.tokenizer, sentences, self.max_length, padding=True, return_tensors="np"
        )
        arrays = {name: np.asarray(array, dtype=np.int64) for name, array in tokens.items()}
        begun = [begun_words(tokens.word_ids(row)) for row in range(len(sentences))]
        words = np.array([[NO_WORD if word is None else word for word in row] for row in begun])
        return Batch(sentences, arrays, words, truncated_rows(tokens))

    def _uncut(self, examples: Sequence[Example]) -> list[list[int]]:
        sentences = [list(example) for example in examples]
        tokens = self.tokenizer(sentences, is_split_into_words=True, verbose=False)
        ids: list[list[int]] = tokens["input_ids"]
        return ids


def keep_words(examples: Sequence[Example]) -> Batch:
    """Encode for a served endpoint, which reads the words itself and predicts a label for each."""
    sentences = _to_sentences(examples)
    longest = max(map(len, sentences))
    words = [[*range(len(each)), *[NO_WORD] * (longest - len(each))] for each in sentences]
    return Batch(sentences, {}, np.array(words))


def _to_sentences(examples: Sequence[Example]) -> tuple[Example, ...]:
    """Return sentences of words; one that came as a text is split."""
    known = to_examples(examples)
    return tuple(
        tuple(given.split()) if isinstance(given, str) else example
        for given, example in zip(examples, known, strict=True)
    )
