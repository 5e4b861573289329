"""General distillation: an encoder into a smaller one on plain text, before any task."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact, check_writable
from bertender.core.errors import ModelError
from bertender.core.findings import Findings
from bertender.models.families import padding_embedding
from bertender.text.tokenizer import longest_input
from bertender.training.checkpoint import tensors_digest
from bertender.training.examples import Padding
from bertender.training.loop import Writer, trained_artifact, training_findings
from distill.distillation.distillation import Distillation, Masked, check_compatible, unmasked
from distill.distillation.general_config import MASK_PROBABILITY, VOCABULARY_SIZE, GeneralConfig
from distill.distillation.start import check_even_start, check_even_teacher
from distill.methods import GENERAL_METHODS
from distill.methods.method import Method
from distill.pretraining.corpus import Corpus, Survey, Watched, survey
from distill.pretraining.mixed import MixedMasking, MixedVocabulary
from distill.pretraining.objectives import MaskedLanguageModel
from distill.pretraining.rows import TokenRow, held_out_loss, pack_rows, stored_parts
from distill.pretraining.vocabularies import trained_once
from distill.students.student import StudentShape
from distill.students.weights import masked_language_model
from distill.teachers.encoders import (
    find_encoder,
    give_every_token_a_row,
    load_classifier,
    load_masked_language_model,
)
from distill.tokenizers import fitting_tokenizer
from distill.trained import TrainedModel, artifact_at, corpus_record

# --- from distill.distillation.reading
# A student's reading of a corpus: its tokenizer, rows of tokens, and their masks.


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


# --- from distill.distillation.general_teacher
# The teacher of a general distillation: an encoder without a task.

UNNAMED_LABELS = ("LABEL_0", "LABEL_1")
"""Labels of a model without a task, as transformers names them."""


@dataclass(frozen=True)
class GeneralTeacher:
    """An encoder to learn from, without a task."""

    source: str
    classifier: PreTrainedModel
    """Its encoder under a new head: what the builders of students start from."""
    language_model: PreTrainedModel | None
    """Its encoder under a head that predicts words, where student and teacher are such models; it
    is the encoder's own where a loss reads what it predicts."""

    @classmethod
    def load(cls, source: str, method: Method) -> Self:
        """Load what a method reads of an encoder.

        Raises:
            ModelError: the encoder cannot be read, or has no head where one is read.
        """
        language_model = _language_model(source, method) if method.predicts_words else None
        classifier, tokenizer = load_classifier(source, UNNAMED_LABELS)
        if language_model is not None:
            give_every_token_a_row(language_model, tokenizer)
        return cls(source, classifier, language_model)

    @property
    def model(self) -> PreTrainedModel:
        """The model whose signals the losses read."""
        return self.language_model or _encoder_of(self.classifier)

    def student(self, method: Method, shape: StudentShape) -> PreTrainedModel:
        """Return the method's student: as its teacher, a language model or a bare encoder."""
        student = method.build(self.classifier, shape)
        if self.language_model is None:
            return _encoder_of(student)
        return masked_language_model(student, self.language_model)


def _language_model(source: str, method: Method) -> PreTrainedModel:
    if not method.reads_predicted_words:
        return load_masked_language_model(source, new_head=True)
    try:
        return load_masked_language_model(source)
    except ModelError as error:
        others = [name for name, row in GENERAL_METHODS.items() if not row.reads_predicted_words]
        raise ModelError(
            f"method {method.name!r} reads which words its teacher predicts: {error} Methods that "
            f"do not: {', '.join(others)}."
        ) from None


def _encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    encoder = model.base_model
    assert isinstance(encoder, PreTrainedModel)
    return encoder


# --- from distill.distillation.on_corpus
# A distillation on a corpus: how the student reads it, and what is held out.

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


# --- from distill.distillation.general
# General distillation: an encoder into a smaller one on plain text, before any task.
#
# encoder + corpus + GeneralConfig
#   -> `on_corpus`: the method's student, an encoder or a masked language model
#   -> `Distillation.run` on dense blocks -> encoder artifact, for `finetune --teacher` and
#      `distill --student`


def distill_general_by_name(config: GeneralConfig, out: Path) -> Artifact:
    """Find and load what the config names, then `distill_general`."""
    method = config.changed_method()
    source = find_encoder(config.teacher)
    check_writable(out, artifact_at(source))
    torch.manual_seed(config.seed)  # an encoder without a pooler gets a random one
    teacher = GeneralTeacher.load(source, method)
    return distill_general(teacher, Corpus(config.corpus, config.text_column), config, out)


def distill_general(
    teacher: GeneralTeacher, passages: Iterable[str], config: GeneralConfig, out: Path
) -> Artifact:
    """Train a smaller encoder on its teacher's outputs on plain text; write a torch artifact.

    The loss on held-out passages is measured after each epoch.

    Args:
        teacher: what to learn from.
        passages: iterated over several times, so not an iterator; an empty one ends a document.
        config: how to learn.
        out: where the artifact goes.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher; raised before training starts.
        DataError: there are too few passages to train and hold out.
    """
    config.check_rules()
    parent = artifact_at(teacher.source)
    check_writable(out, parent)
    ready = on_corpus(teacher, passages, config)

    def train(work: Path) -> Writer:
        distillation = ready.distillation(work)
        trained = distillation.run(config, work, f"distill {out.name}")
        student = _with_empty_padding(trained.student)
        corpus = corpus_record(config.corpus, config.text_column, "loss")
        findings = Findings(training=training_findings(trained.reports))
        tokenizer, projections = distillation.tokenizer, trained.projections
        made = TrainedModel(
            student,
            tokenizer,
            corpus,
            findings,
            projections=projections,
            method=config.method,
        )
        return made.write

    identity = ready.identity
    return trained_artifact(out, "distill-general", config, train, identity=identity, parent=parent)


def _with_empty_padding(student: PreTrainedModel) -> PreTrainedModel:
    """Return the student with zeros for its padding, which a text's last token may read.

    Predicting words has changed them.
    """
    if (padding := padding_embedding(student)) is not None:
        padding.zero_()
    return student
