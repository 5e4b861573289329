"""A distillation on a corpus: how the student reads it, and what is held out."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.text.batch import longest_input
from bertender.training.weights import tensors_digest
from distill.corpora.corpus import Survey, Watched, survey
from distill.corpora.held_out import held_out_loss
from distill.corpora.token_store import stored_parts
from distill.data import fitting_tokenizer
from distill.distillation.distillation import Distillation
from distill.distillation.general_config import MASK_PROBABILITY, VOCABULARY_SIZE, GeneralConfig
from distill.distillation.general_teacher import GeneralTeacher
from distill.distillation.phases import check_compatible, unmasked
from distill.distillation.reading import Reading, as_its_teacher, in_both_vocabularies
from distill.distillation.start import check_even_start, check_even_teacher
from distill.methods.method import Method
from distill.vocabularies import trained_once
from distill.vocabularies.mixed import MixedVocabulary

__all__ = ["OnCorpus", "check_general_teacher", "new_general_student", "on_corpus"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class OnCorpus:
    """A distillation on a corpus, checked; its vocabulary and its blocks are not made yet."""

    teacher: GeneralTeacher
    method: Method
    student: PreTrainedModel
    """Over the teacher's vocabulary, also where it shall have one of its own."""
    tokenizer: PreTrainedTokenizerBase
    passages: Iterable[str]
    surveyed: Survey
    config: GeneralConfig

    @property
    def identity(self) -> tuple[Any, ...]:
        """Inputs of the run besides the settings."""
        weights = tensors_digest(self.teacher.model.state_dict())
        return self.surveyed.sha256, (weights, sorted(self.tokenizer.get_vocab().items()))

    def distillation(self, work: Path) -> Distillation:
        """Make what the student reads; a part that is in `work` already is not made again."""
        method, student, reading = self.method, self.student, self._reading(work / "vocabulary")
        if method.student.own_vocabulary:
            student = new_general_student(self.teacher, method, self.config, reading.tokenizer)
        blocks = (reading.rows, work / "blocks", reading.padding)
        training, held_out = stored_parts(self.passages, self.surveyed, *blocks)
        share = self.config.mask_probability or MASK_PROBABILITY
        masks = method.predicts_words
        return Distillation(
            student=student,
            teacher=self.teacher.model,
            tokenizer=reading.tokenizer,
            phases=method.at(student.config.num_hidden_layers).phases,
            examples=lambda: training,
            evaluate=partial(held_out_loss, examples=held_out),
            masking=reading.masking(share, self.config.seed) if masks else unmasked,
        )

    def _reading(self, directory: Path) -> Reading:
        """Return how the student reads the corpus; a vocabulary of its own is trained here."""
        config = self.config
        longest = min(config.max_length, longest_input(self.tokenizer))
        if not self.method.student.own_vocabulary:
            return as_its_teacher(self.tokenizer, longest)
        sizes = config.vocabulary_size or VOCABULARY_SIZE, longest_input(self.tokenizer)
        passages = Watched(self.passages, self.surveyed, "train the student's vocabulary")
        own = trained_once("wordpiece", passages, *sizes, directory)
        logger.info("the student's vocabulary has %d entries, %d were allowed", len(own), sizes[0])
        # without the space, RoBERTa's refuses single words; others have no use for it
        model = self.teacher.model
        by_words = fitting_tokenizer(self.teacher.source, model, add_prefix_space=True)
        vocabulary = MixedVocabulary(own, by_words, model.config.vocab_size)
        return in_both_vocabularies(vocabulary, longest, config.seed)


def on_corpus(teacher: GeneralTeacher, passages: Iterable[str], config: GeneralConfig) -> OnCorpus:
    """Check all of a distillation on a corpus, and read through the corpus once.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher.
        DataError: there are too few passages to train and hold out.
    """
    method = config.changed_method()
    check_general_teacher(teacher.model.config, method)
    theirs = fitting_tokenizer(teacher.source, teacher.model)
    # of its own vocabulary there is only the corpus yet, so the teacher's stands in for it
    stand_in = theirs if method.student.own_vocabulary else None
    student = new_general_student(teacher, method, config, stand_in)
    check_compatible(method, student, teacher.model)
    tokenizer = fitting_tokenizer(teacher.source, student)
    surveyed = survey(passages)
    surveyed.check_enough()
    return OnCorpus(teacher, method, student, tokenizer, passages, surveyed, config)


def check_general_teacher(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where a teacher was pruned, and its layers are read or started from."""
    check_even_teacher(config, method)
    check_even_start(config, method)


def new_general_student(
    teacher: GeneralTeacher,
    method: Method,
    config: GeneralConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> PreTrainedModel:
    """Build the student of the config, over its teacher's vocabulary or its own."""
    torch.manual_seed(config.seed)  # what the student does not take from its teacher is random
    shape = config.shape(method, teacher.model.config.num_hidden_layers)
    return teacher.student(method, replace(shape, tokenizer=tokenizer))
