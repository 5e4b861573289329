"""A student's reading of a corpus: its tokenizer, rows of tokens, and their masks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from transformers import PreTrainedTokenizerBase

from bertender.training.examples import Padding
from distill.corpora.corpus import pack_rows
from distill.corpora.token_store import TokenRow
from distill.distillation.phases import Masked
from distill.objectives.masked_language_model import MaskedLanguageModel
from distill.vocabularies.mixed import MixedMasking, MixedVocabulary

__all__ = ["Reading", "as_its_teacher", "in_both_vocabularies"]


@dataclass(frozen=True)
class Reading:
    """Rows of a corpus that a student trains on."""

    tokenizer: PreTrainedTokenizerBase
    """The student's."""
    rows: Callable[[Iterable[str]], Iterator[TokenRow]]
    """passages -> rows of tokens"""
    padding: Padding
    masking: Callable[[float, int], Masked]
    """(share of the tokens, seed) -> what masks a batch, in phases that mask some"""


def as_its_teacher(tokenizer: PreTrainedTokenizerBase, max_length: int) -> Reading:
    """Return the reading of a student that reads its teacher's very tokens."""
    return Reading(
        tokenizer,
        partial(pack_rows, tokenizer=tokenizer, max_length=max_length),
        Padding.of(tokenizer),
        lambda share, seed: MaskedLanguageModel(tokenizer, share, seed).masked_batch,
    )


def in_both_vocabularies(vocabulary: MixedVocabulary, max_length: int, seed: int) -> Reading:
    """Return the reading of a student with a vocabulary of its own, next to its teacher's copy."""
    return Reading(
        vocabulary.student,
        partial(vocabulary.rows, max_length=max_length, seed=seed),
        vocabulary.padding,
        partial(MixedMasking, vocabulary),
    )
