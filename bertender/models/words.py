"""Sentences of words on their way through a tagger: word pieces, and back to one answer a word.

The first piece of a word answers for it; its other pieces and special tokens answer nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from transformers import BatchEncoding, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact
from bertender.models.predictor import Predictor, TorchPredictor, load_torch_tagger
from bertender.text.batch import Batch, load_tokenizer, longest_input
from bertender.text.batching import length_buckets
from bertender.text.example import Example

__all__ = ["Tagger", "begun_words", "encode_words", "open_tagger", "pieces_of_words"]

WORDS_PER_BATCH = 2048


def encode_words(
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Example],
    max_length: int,
    **settings: Any,
) -> BatchEncoding:
    """Tokenise sentences that are split into words.

    Args:
        tokenizer: a fast one, which tells the word of each piece (`word_ids`).
        sentences: words.
        max_length: longer sentences are cut to so many tokens, or to what the model takes.
        settings: more of the tokenizer's own (padding, kind of tensors).
    """
    tokens: BatchEncoding = tokenizer(
        [list(sentence) for sentence in sentences],
        is_split_into_words=True,
        truncation=True,
        max_length=min(max_length, longest_input(tokenizer)),
        **settings,
    )
    return tokens


def begun_words(word_ids: Sequence[int | None]) -> list[int | None]:
    """Return the word that each token begins; None for other pieces and special tokens."""
    pairs = pairwise((None, *word_ids))
    return [word if word != before else None for before, word in pairs]


def pieces_of_words(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[Sequence[str]]
) -> list[list[list[int]]]:
    """Return the numbers of the pieces of each word, without special tokens, of any length.

    Args:
        tokenizer: a fast one, which tells the word of each piece.
        sentences: words.
    """
    tokens = tokenizer(
        [list(sentence) for sentence in sentences],
        is_split_into_words=True,
        add_special_tokens=False,
        verbose=False,  # no word about inputs longer than the model takes
    )
    found: list[list[list[int]]] = [[[] for _ in sentence] for sentence in sentences]
    for row, words in enumerate(found):
        for piece, word in zip(tokens["input_ids"][row], tokens.word_ids(row), strict=True):
            assert word is not None  # only special tokens are of no word
            words[word].append(piece)
    return found


@dataclass(frozen=True)
class Tagger:
    """A model ready to label words: sentences -> word pieces -> predictor -> a label a word."""

    name: str
    labels: tuple[str, ...]
    tokenizer: PreTrainedTokenizerBase
    predictor: Predictor
    max_length: int

    def tag(self, sentences: Sequence[Example]) -> list[list[int | None]]:
        """Return the label number of each word; None for words that the model does not see.

        These are the words beyond `max_length`, and those of characters that it drops.
        """
        answers: list[list[int | None]] = [[None] * len(sentence) for sentence in sentences]
        for bucket in length_buckets([len(words) for words in sentences], WORDS_PER_BATCH):
            tagged = self._tag_batch([sentences[row] for row in bucket])
            for row, by_word in zip(bucket, tagged, strict=True):
                for word, label in by_word.items():
                    answers[row][word] = label
        return answers

    def _tag_batch(self, sentences: Sequence[Example]) -> list[dict[int, int]]:
        """Return the label number by word, of each sentence."""
        tokens = encode_words(
            self.tokenizer, sentences, self.max_length, padding=True, return_tensors="np"
        )
        arrays = {name: np.asarray(array, dtype=np.int64) for name, array in tokens.items()}
        logits = self.predictor.logits(Batch(tuple(sentences), arrays))  # (batch, seq, labels)
        labels = logits.argmax(-1).tolist()
        return [
            {
                word: label
                for word, label in zip(begun_words(tokens.word_ids(row)), labels[row], strict=True)
                if word is not None
            }
            for row in range(len(sentences))
        ]


def open_tagger(artifact: Artifact, *, max_length: int | None = None) -> Tagger:
    """Open a torch artifact that labels words.

    Raises:
        ModelError: it was made for something else, or transformers cannot open it.
    """
    tokenizer = load_tokenizer(artifact.path)
    return Tagger(
        artifact.name,
        artifact.card.task.labels,
        tokenizer,
        TorchPredictor(load_torch_tagger(artifact)),
        max_length or longest_input(tokenizer),
    )
