"""The vocabulary of a student, cut to the texts that it learns from."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.errors import DataError, ModelError
from bertender.core.findings import VocabularyFindings
from bertender.tasks.task import Split, Task
from bertender.training.heads import HEADS
from distill.distillation.distill_config import ALL_TOKENS, DistillConfig
from distill.pretraining.vocabulary_cutting import (
    RemainingTokens,
    check_padding_stays,
    cut_and_read,
    needed_tokens,
    whole_words,
)

logger = logging.getLogger(__name__)

ENOUGH = 0.99
"""Least share of the words of unseen texts that stay whole. One word of a hundred is one of every
eighth sentence, and it is still read, in smaller tokens."""
WORTHWHILE = 0.9
"""Most of the entries that remain of a vocabulary that is cut by default."""


@dataclass(frozen=True)
class StudentTokens:
    """A student's tokenizer, and the tokens that remain of it."""

    whole: PreTrainedTokenizerBase
    """That of what the student starts from."""
    remaining: RemainingTokens | None = None
    """None where all do."""
    cut_after_training: bool = False

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that the student learns with."""
        return self.remaining.tokenizer if self.cut_first and self.remaining else self.whole

    @property
    def cut_first(self) -> bool:
        """Whether the student learns with fewer tokens from its first step."""
        return self.remaining is not None and not self.cut_after_training

    def cut(self, student: PreTrainedModel, task: Task) -> VocabularyFindings | None:
        """Cut the student's tables in place; return how held-out texts are read then."""
        if self.remaining is None:
            return None
        return cut_and_read(student, self.whole, self.remaining, _texts(task.dev))


def student_tokens(
    whole: PreTrainedTokenizerBase,
    student: PreTrainedModel,
    learned: Split,
    task: Task,
    config: DistillConfig,
    *,
    cut_first: bool,
) -> StudentTokens:
    """Return the tokens of a student that has not learned yet.

    Args:
        whole: the tokenizer of what it starts from.
        student: the model.
        learned: the texts that it learns from, those without labels and rewritten ones too.
        task: its texts to choose by say whether these are enough.
        config: the size.
        cut_first: whether it may learn without the other tokens.

    Raises:
        ConfigError, ModelError: a number of entries is set, and the vocabulary cannot be cut, or
            not to so few.
    """
    if config.most_entries is not None:
        texts = _texts(learned)
        return StudentTokens(
            whole, needed_tokens(whole, texts, config.vocab_floor, config.most_entries)
        )
    if config.vocab_size == ALL_TOKENS or not HEADS[task.problem_type].one_label:
        return StudentTokens(whole)
    try:
        tokens = needed_tokens(whole, _texts(learned), config.vocab_floor)
        check_padding_stays(student, tokens)
    except (DataError, ModelError) as error:  # no text has a token, or its kind cannot be cut
        logger.info("the vocabulary stays whole: %s", error)
        return StudentTokens(whole)
    return StudentTokens(whole, _if_enough(whole, tokens, task), not cut_first)


def _if_enough(
    whole: PreTrainedTokenizerBase, tokens: RemainingTokens, task: Task
) -> RemainingTokens | None:
    """Return the tokens where a cut to them is worthwhile and costs nothing; say what is done."""
    entries, before = len(tokens.rows), len(whole)
    if entries > WORTHWHILE * before or not len(task.choices):
        return None
    share = whole_words(whole, tokens, _texts(task.choices))
    if share < ENOUGH:
        logger.warning(
            "the vocabulary stays whole: of the words of the texts to choose by, %.1f %% have all "
            "their tokens in the texts that the student learns from, and a cut to %d of %d tokens "
            "wants %g %%. Give more texts (--unlabelled), or --vocab-size %d to cut it all the "
            "same",
            *(100 * share, entries, before, 100 * ENOUGH, entries),
        )
        return None
    logger.info("the vocabulary is cut to %d of %d tokens: %.1f %%", entries, before, 100 * share)
    return tokens


def _texts(split: Split) -> Iterator[str]:
    return (text for example in split.examples for text in example)
