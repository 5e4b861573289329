"""The texts that a pruned model recovers on, and the teacher whose logits it learns there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from bertender.core.errors import ConfigError, ModelError
from bertender.models.families import most_tokens
from bertender.models.importing import open_artifact
from bertender.tasks.task import Task
from bertender.text.batch import load_tokenizer, longest_input
from bertender.training.config import computes_in_bf16
from bertender.training.examples import TokenDataset
from bertender.training.heads import HEADS
from distill.data import token_dataset
from distill.distillation.unlabelled import with_unlabelled
from distill.distillation.unlabelled_config import FilteredConfig, UnlabelledConfig
from distill.pruning.config import PruneConfig
from distill.teachers.outputs import LOGITS, teacher_outputs, teacher_token_logits
from distill.teachers.parts import Column
from distill.teachers.teacher import Teacher

__all__ = ["RecoveryTexts", "check_unlabelled_read", "recovery_texts"]


@dataclass(frozen=True)
class RecoveryTexts:
    """Texts with a teacher's logits."""

    teacher: Teacher
    task: Task
    """With the unlabelled texts."""
    labelled: Task
    """Without them."""
    config: PruneConfig
    left_out: Mapping[str, int]
    """How many unlabelled texts were left out, by the filter."""

    def other_teacher(self, unpruned: Teacher) -> tuple[str, ...]:
        """Return the digest of a teacher that is not the unpruned model."""
        return () if self.teacher is unpruned else (self.teacher.artifact.digest,)

    def added(self) -> dict[str, Any]:
        """Return the findings on texts that were learned from beside the task's own."""
        if not (self.config.learns_unlabelled and self.config.recovers):
            return {}
        count = len(self.task.train) - len(self.labelled.train)
        return {"unlabelled_texts": count, "unlabelled_left_out": dict(self.left_out)}

    def tokenised(self, tokenizer: PreTrainedTokenizerBase, task: Task) -> TokenDataset:
        """Return a task's training texts in tokens."""
        return token_dataset(task.train, tokenizer, task.problem_type)

    def examples(self, tokenizer: PreTrainedTokenizerBase) -> TokenDataset:
        """Return the texts for the pruned model, with the teacher's logits where it recovers.

        Args:
            tokenizer: the pruned model's.
        """
        if not self.config.recovers:  # what is cut depends on labelled texts
            return self.tokenised(tokenizer, self.labelled)
        texts = self.tokenised(tokenizer, self.task)
        if HEADS[self.task.problem_type].per_token:
            padding = texts.padding.with_others(**{LOGITS: 0})
            logits = self._token_logits(longest_input(tokenizer))
            return TokenDataset({**texts.columns, LOGITS: logits}, padding)
        return texts.with_columns(**self._logits(longest_input(tokenizer)))

    def _logits(self, longest: int) -> Mapping[str, Column]:
        """Return the teacher's logits (texts, labels), cached."""
        own, bf16 = self._own_tokens(longest), computes_in_bf16(self.config)
        model, digest = self.teacher.model, self.teacher.artifact.digest
        return teacher_outputs(model, digest, own, {"logits": frozenset()}, bf16)

    def _token_logits(self, longest: int) -> tuple[torch.Tensor, ...]:
        own, bf16 = self._own_tokens(longest), computes_in_bf16(self.config)
        return teacher_token_logits(self.teacher.model, self.teacher.artifact.digest, own, bf16)

    def _own_tokens(self, longest: int) -> TokenDataset:
        """Return the texts as the teacher reads them, no more of each than the pruned model."""
        longest = min(longest, most_tokens(self.teacher.model.config) or longest)
        return self.tokenised(load_tokenizer(self.teacher.artifact.path, longest), self.task)


def recovery_texts(unpruned: Teacher, task: Task, config: PruneConfig) -> RecoveryTexts:
    """Load the teacher that is set and the unlabelled texts.

    Raises:
        ConfigError: the teacher predicts other labels.
        ModelError, NotAnArtifactError, DamagedArtifactError: it is not a classifier, or it labels
            words and reads other tokens.
        DataError: the file of unlabelled texts is wrong.
    """
    teacher = unpruned
    if config.teacher is not None:
        teacher = Teacher.load(open_artifact(config.teacher), task)
        _check_same_tokens(teacher, unpruned, task)
    texts = {name: getattr(config, name) for name in UnlabelledConfig.model_fields}
    extended = with_unlabelled(task, FilteredConfig(**texts))
    return RecoveryTexts(teacher, extended.task, task, config, extended.left_out)


def check_unlabelled_read(task: Task, config: PruneConfig) -> None:
    """Raise ConfigError for unlabelled texts where words have labels."""
    if config.learns_unlabelled and not HEADS[task.problem_type].one_label:
        raise ConfigError(
            "unlabelled, unlabelled_texts: for tasks whose texts have one label each, and task "
            f"{task.name!r} is one of {task.problem_type!r}. Leave out what is named."
        )


def _check_same_tokens(teacher: Teacher, unpruned: Teacher, task: Task) -> None:
    """Raise ModelError where a tagger would learn from the outputs on other tokens."""
    own, other = (load_tokenizer(each.artifact.path).get_vocab() for each in (unpruned, teacher))
    if HEADS[task.problem_type].per_token and own != other:
        raise ModelError(
            f"teacher={str(teacher.artifact.path)!r}: a tagger learns token by token, so that "
            "both models must read the same ones, and these do not. Leave it out, or give a "
            "teacher with the same vocabulary."
        )
