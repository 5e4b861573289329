"""Sentences of a corpus: where they end, and their tokens with the document that they are of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import islice

from transformers import PreTrainedTokenizerBase

__all__ = ["Sentence", "split_sentences", "tokenised_sentences"]

PASSAGES_AT_ONCE = 256
SENTENCE_END = re.compile(r"(?<=[.!?])(?=\s)")

Sentence = list[int]
"""Its tokens."""


def split_sentences(passage: str) -> list[str]:
    """Return the sentences of a passage; an empty one, and nothing else, has an empty one.

    The white space between two is the beginning of the second, so that byte-level tokens of the
    sentences are those of the passage.
    """
    return [text for text in SENTENCE_END.split(passage) if text] or [""]


def tokenised_sentences(
    passages: Iterable[str], tokenizer: PreTrainedTokenizerBase, longest: int
) -> Iterator[tuple[int, Sentence]]:
    """Yield the number of the document and the tokens of each sentence.

    Args:
        passages: an empty one ends a document.
        tokenizer: adds no special tokens here.
        longest: a sentence of more tokens is cut into parts of so many, and a rest.
    """
    document = 0
    stream = iter(passages)
    while chunk := list(islice(stream, PASSAGES_AT_ONCE)):
        texts = [text for passage in chunk for text in split_sentences(passage)]
        tokens = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
        for text, ids in zip(texts, tokens, strict=True):
            document += not text
            for begin in range(0, len(ids), longest):
                yield document, ids[begin : begin + longest]
