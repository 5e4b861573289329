"""TOKENIZERS: how a vocabulary is trained on a corpus, by name; one kind a file.

Each reads its passages as a stream, holds the distinct words of them and no text, and gives the
same vocabulary for the same passages on every run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.build_once import directory_once
from bertender.core.table import Table, on_demand
from bertender.text.batch import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TOKENIZERS", "TokenizerKind", "trained_once"]


@dataclass(frozen=True)
class TokenizerKind:
    """A row of TOKENIZERS."""

    name: str
    summary: str
    paper: str
    train: Callable[[Iterable[str], int, int], PreTrainedTokenizerBase]
    """(passages, entries of the vocabulary, longest input in tokens) -> a fast tokenizer"""
    smallest: int = 100
    """The fewest entries that a vocabulary of this kind can have."""


TOKENIZERS = Table(
    "tokenizer",
    {
        kind.name: kind
        for kind in (
            TokenizerKind(
                name="wordpiece",
                summary="uncased WordPiece tokens, as BERT's",
                paper="Devlin et al. 2018, arXiv 1810.04805",
                train=on_demand("distill.vocabularies.wordpiece:train_wordpiece"),
            ),
            TokenizerKind(
                name="bpe",
                summary="merged bytes, as RoBERTa's: any text, cased, without unknown tokens",
                paper="Sennrich et al. 2016, arXiv 1508.07909; Liu et al. 2019, arXiv 1907.11692",
                train=on_demand("distill.vocabularies.byte_level_bpe:train_byte_level_bpe"),
                smallest=5 + 256,  # special tokens, and the bytes
            ),
            TokenizerKind(
                name="unigram",
                summary="uncased tokens of a unigram language model, as ALBERT's",
                paper="Kudo 2018, arXiv 1804.10959",
                train=on_demand("distill.vocabularies.unigram:train_unigram"),
            ),
        )
    },
)


def trained_once(
    name: str, passages: Iterable[str], vocabulary_size: int, max_length: int, directory: Path
) -> PreTrainedTokenizerBase:
    """Train a tokenizer of this name, or load the one that the interrupted run has trained.

    Args:
        name: a row of TOKENIZERS.
        passages: the corpus.
        vocabulary_size: most entries.
        max_length: most tokens of an input.
        directory: in the work directory of the run.
    """

    def train_and_save(draft: Path) -> None:
        train = TOKENIZERS[name].train
        train(passages, vocabulary_size, max_length).save_pretrained(draft)

    identity = (name, vocabulary_size, max_length)  # the corpus is in the directory's name
    return load_tokenizer(directory_once(directory, identity, train_and_save))
