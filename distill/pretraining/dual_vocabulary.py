"""Rows of text in two vocabularies at once, for dual training (Zhao et al. 2019, section 3.2).

The student reads its own tokens. The teacher reads the same words, each in a random one of the two
vocabularies: the student's tokens are numbered after the teacher's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from bertender.text.batch import batched, tokens_of_words
from bertender.text.tokenizer import Padding, padding_of
from bertender.training.examples import TensorBatch
from distill.losses.terms import MIXED_INPUTS, MIXED_TARGETS
from distill.pretraining.corpus import PASSAGES_AT_ONCE
from distill.pretraining.masking import Masking, step_generator
from distill.pretraining.rows import TokenRow

STUDENT_SHARE = 0.5
"""Share of the words in the teacher's rows that are split by the student's vocabulary."""


@dataclass(frozen=True)
class MixedVocabulary:
    """Two vocabularies, numbered one after the other, which masking treats as one."""

    student: PreTrainedTokenizerBase
    teacher: PreTrainedTokenizerBase
    teacher_entries: int
    """Rows of the teacher's embedding table, possibly more than its tokens."""

    def __len__(self) -> int:
        return self.teacher_entries + len(self.student)

    @property
    def mask_token_id(self) -> int:
        """The teacher's mask token, for both vocabularies."""
        return int(self.teacher.mask_token_id)

    @property
    def all_special_ids(self) -> list[int]:
        own = [self.teacher_entries + token for token in self.student.all_special_ids]
        return [*self.teacher.all_special_ids, *own]

    @property
    def padding(self) -> Padding:
        """Padding of rows."""
        return padding_of(self.student).with_others(
            **{
                MIXED_INPUTS["input_ids"]: int(self.teacher.pad_token_id),
                MIXED_INPUTS["attention_mask"]: 0,
            },
        )

    def rows(self, passages: Iterable[str], max_length: int, seed: int) -> Iterator[TokenRow]:
        """Pack passages into rows with both tokenisations; the longer one fills a row.

        Args:
            passages: passages of the corpus; ends of documents are ignored.
            max_length: most tokens of either tokenisation.
            seed: seed of the choice of vocabularies.
        """
        coin = torch.Generator().manual_seed(seed)
        starts = [self.student.cls_token_id], [self.teacher.cls_token_id]
        own_row, mixed_row = map(list, starts)
        for own, mixed in self._read(filter(None, passages), coin):
            longest = max(len(own_row) + len(own), len(mixed_row) + len(mixed))
            if longest > max_length and len(own_row) > 1:  # an empty row takes any word, truncated
                yield _columns(own_row, mixed_row)
                own_row, mixed_row = map(list, starts)
            own_row += own[: max_length - 1]
            mixed_row += mixed[: max_length - 1]
        if len(own_row) > 1:
            yield _columns(own_row, mixed_row)

    def _read(
        self, passages: Iterator[str], coin: torch.Generator
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yield both tokenisations of each word, and of the end of each passage."""
        for batch in batched(map(str.split, passages), PASSAGES_AT_ONCE):
            readings = zip(
                tokens_of_words(self.student, batch),
                tokens_of_words(self.teacher, batch),
                strict=True,
            )
            for sentence in readings:
                falls = torch.rand(len(sentence[0]), generator=coin) < STUDENT_SHARE
                for own, theirs, is_own in zip(*sentence, falls.tolist(), strict=True):
                    if not (own and theirs):
                        continue  # only one of the tokenizers drops the word
                    shifted = [self.teacher_entries + token for token in own]
                    yield own, shifted if is_own else theirs
                yield [self.student.sep_token_id], [self.teacher.sep_token_id]


def _columns(own: list[int], mixed: list[int]) -> TokenRow:
    return {
        "input_ids": own,
        "attention_mask": [1] * len(own),
        MIXED_INPUTS["input_ids"]: mixed,
        MIXED_INPUTS["attention_mask"]: [1] * len(mixed),
    }


class MixedMasking:
    """Masks both tokenisations of a batch independently.

    Args:
        vocabulary: both vocabularies.
        share: share of the ordinary tokens to predict, in each tokenisation.
        seed: seed of the masks, combined with the step.
    """

    def __init__(self, vocabulary: MixedVocabulary, share: float, seed: int) -> None:
        self.own = Masking(vocabulary.student, share)
        self.mixed = Masking(vocabulary, share)
        self.seed = seed

    def __call__(self, batch: TensorBatch, step: int) -> TensorBatch:
        """Return the batch with this step's masks, `targets` and `mixed_targets`."""
        generator = step_generator(self.seed, step)
        batch = self.own.masked_batch(batch, generator)
        ids = MIXED_INPUTS["input_ids"]
        masked, targets = self.mixed(batch[ids], generator)
        return {**batch, ids: masked, MIXED_TARGETS: targets}
