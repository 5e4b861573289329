"""General distillation: an encoder into a smaller one on plain text, before any task.

encoder + corpus + GeneralConfig
  -> the method's student, an encoder or a masked language model
  -> `phases.train_phases` on dense blocks -> encoder artifact, for `finetune --teacher` and
     `distill --student`
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from bertender.core.artifact import Artifact, refuse_unwritable
from bertender.core.distributed import on_main_process
from bertender.core.errors import ModelError
from bertender.core.work import work_directory
from bertender.models.families import padding_embedding
from bertender.text.batch import longest_input
from bertender.training.config import computes_in_bf16
from bertender.training.examples import TokenDataset
from bertender.training.loop import TrainingReport
from distill.corpora.corpus import Corpus, Watched, survey
from distill.corpora.held_out import held_out_loss
from distill.corpora.token_store import stored_parts
from distill.data import fitting_tokenizer
from distill.distillation.general_config import MASK_PROBABILITY, VOCABULARY_SIZE, GeneralConfig
from distill.distillation.phases import DistillationObjective, refuse_misfits, train_phases
from distill.distillation.reading import Masked, Reading, as_its_teacher, in_both_vocabularies
from distill.methods import GENERAL_METHODS, Method, Phase
from distill.students import StudentShape, masked_language_model
from distill.teachers.encoders import (
    find_encoder,
    load_classifier,
    load_masked_language_model,
    tensors_digest,
)
from distill.vocabularies import trained_once
from distill.vocabularies.mixed import MixedVocabulary
from distill.writing import artifact_at, write_encoder

__all__ = ["GeneralConfig", "GeneralTeacher", "distill_general", "distill_general_by_name"]

logger = logging.getLogger(__name__)

UNNAMED_LABELS = ("LABEL_0", "LABEL_1")
"""What transformers calls the labels of a model that has no task."""


@dataclass(frozen=True)
class GeneralTeacher:
    """An encoder to learn from, without a task."""

    source: str
    classifier: PreTrainedModel
    """Its encoder under a new head: what the builders of students start from."""
    language_model: PreTrainedModel | None
    """Its encoder under its own head that predicts words, where the method reads that."""

    @classmethod
    def load(cls, source: str, method: Method) -> Self:
        """Load what a method reads of an encoder.

        Raises:
            ModelError: the encoder cannot be read, or has no head where one is read.
        """
        language_model = _language_model(source, method) if method.predicts_words else None
        classifier, _ = load_classifier(source, UNNAMED_LABELS)
        return cls(source, classifier, language_model)

    @property
    def model(self) -> PreTrainedModel:
        """What the losses read."""
        return self.language_model or _encoder_of(self.classifier)

    def student(self, method: Method, shape: StudentShape) -> PreTrainedModel:
        """Return the method's student: as its teacher, a language model or a bare encoder."""
        student = method.student(self.classifier, shape)
        if self.language_model is None:
            return _encoder_of(student)
        return masked_language_model(student, self.language_model)


def distill_general_by_name(config: GeneralConfig, out: Path) -> Artifact:
    """Find and load what the config names, then `distill_general`."""
    method = config.changed_method()
    source = find_encoder(config.teacher)
    refuse_unwritable(out, artifact_at(source))
    torch.manual_seed(config.seed)  # an encoder without a pooler gets a random one
    teacher = GeneralTeacher.load(source, method)
    return distill_general(teacher, Corpus(config.corpus, config.text_column), config, out)


def distill_general(
    teacher: GeneralTeacher, passages: Iterable[str], config: GeneralConfig, out: Path
) -> Artifact:
    """Train a smaller encoder on what its teacher answers to plain text; write a torch artifact.

    The loss on held-out passages is measured after each epoch.

    Args:
        teacher: what to learn from.
        passages: read anew several times, so an iterable that can be; an empty one ends a document.
        config: how to learn.
        out: where the artifact goes.

    Raises:
        UnknownNameError, ConfigError, ModelError: the method, its weights or the student's shape
            cannot be had from this teacher; raised before training starts.
        DataError: there are too few passages to train and hold out.
    """
    config.check_rules()
    refuse_unwritable(out, artifact_at(teacher.source))
    method = config.changed_method()
    theirs = fitting_tokenizer(teacher.source, teacher.model)
    _refuse_unread_pieces(theirs, teacher)
    # of its own vocabulary there is only the corpus yet, so the teacher's stands in for it
    stand_in = theirs if method.own_vocabulary else None
    student = _new_student(teacher, method, config, stand_in)
    refuse_misfits(method, student, teacher.model)
    tokenizer = fitting_tokenizer(teacher.source, student)
    found = survey(passages)
    found.refuse_too_few()
    digests = (tensors_digest(teacher.model.state_dict()), sorted(tokenizer.get_vocab().items()))
    identity = ("distill-general", config.model_dump(mode="json"), found.sha256, digests)
    with work_directory(out, *identity) as work:
        watched = Watched(passages, found, "train the student's vocabulary")
        reading = _reading(method, watched, teacher, tokenizer, config, work / "vocabulary")
        if method.own_vocabulary:
            student = _new_student(teacher, method, config, reading.tokenizer)
        blocks = stored_parts(passages, found, reading.rows, work / "blocks", reading.padding)
        student, reports = _trained(student, teacher, reading, blocks, config, work, out.name)
        write = partial(
            write_encoder,
            stage="distill-general",
            metric="loss",
            parent=artifact_at(teacher.source),
        )
        on_main_process(lambda: write(out, student, reading.tokenizer, config, reports))
    return Artifact.load(out)


def _new_student(
    teacher: GeneralTeacher,
    method: Method,
    config: GeneralConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> PreTrainedModel:
    """Build the student as the config wants it, over its teacher's vocabulary or its own."""
    torch.manual_seed(config.seed)  # what the student does not take from its teacher is random
    shape = config.shape(method, teacher.model.config.num_hidden_layers)
    return teacher.student(method, replace(shape, tokenizer=tokenizer))


def _trained(
    student: PreTrainedModel,
    teacher: GeneralTeacher,
    reading: Reading,
    blocks: tuple[TokenDataset, TokenDataset],
    config: GeneralConfig,
    work: Path,
    name: str,
) -> tuple[PreTrainedModel, dict[str, TrainingReport]]:
    """Train the student on blocks, the second of which are held out; a report for each phase."""
    method = config.changed_method()
    training, held_out = blocks
    objective = partial(_objective, student, teacher.model, reading, config)
    student, reports = train_phases(
        method,
        student,
        teacher.model,
        training,
        objective,
        config,
        work,
        description=f"distill {name}",
        score=_held_out_score(method, objective, held_out),
    )
    if (padding := padding_embedding(student)) is not None:
        padding.zero_()  # predicting words has changed it, and a text's last token reads it
    return student, reports


def _language_model(source: str, method: Method) -> PreTrainedModel:
    try:
        return load_masked_language_model(source)
    except ModelError as error:
        others = [name for name, row in GENERAL_METHODS.items() if not row.predicts_words]
        raise ModelError(
            f"method {method.name!r} reads which words its teacher predicts: {error} Methods that "
            f"read none: {', '.join(others)}."
        ) from None


def _refuse_unread_pieces(tokenizer: PreTrainedTokenizerBase, teacher: GeneralTeacher) -> None:
    """Raise ModelError where a tokenizer has pieces that its model has no embedding for."""
    rows = teacher.model.config.vocab_size
    if len(tokenizer) > rows:
        raise ModelError(
            f"the tokenizer of {teacher.source!r} has {len(tokenizer)} pieces and the model "
            f"embeddings for {rows}. Give a teacher whose table was resized to its tokenizer."
        )


def _reading(
    method: Method,
    passages: Iterable[str],
    teacher: GeneralTeacher,
    tokenizer: PreTrainedTokenizerBase,
    config: GeneralConfig,
    directory: Path,
) -> Reading:
    """Return how the student reads the corpus; a vocabulary of its own is trained here."""
    longest = min(config.max_length, longest_input(tokenizer))
    if not method.own_vocabulary:
        return as_its_teacher(tokenizer, longest)
    sizes = config.vocabulary_size or VOCABULARY_SIZE, longest_input(tokenizer)
    own = trained_once("wordpiece", passages, *sizes, directory)
    logger.info("the student's vocabulary has %d entries, %d were allowed", len(own), sizes[0])
    # without the space, RoBERTa's refuses single words; others have no use for it
    by_words = fitting_tokenizer(teacher.source, teacher.model, add_prefix_space=True)
    vocabulary = MixedVocabulary(own, by_words, teacher.model.config.vocab_size)
    return in_both_vocabularies(vocabulary, longest, config.seed)


def _objective(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    reading: Reading,
    config: GeneralConfig,
    phase: Phase,
) -> DistillationObjective:
    """Return the objective of a phase, in which the teacher answers each batch as it comes."""
    share = config.mask_probability or MASK_PROBABILITY
    prepare: Masked = (
        reading.masking(share, config.seed) if phase.masked else lambda batch, step: batch
    )
    depths = student.config.num_hidden_layers, teacher.config.num_hidden_layers
    bf16 = computes_in_bf16(config)
    return DistillationObjective(teacher, phase.reads(*depths), bf16, prepare=prepare)


def _held_out_score(
    method: Method, objective: Callable[[Phase], DistillationObjective], held_out: TokenDataset
) -> Callable[[Any], dict[str, float]]:
    """Return what measures a trainee: the loss of the last phase and its parts, held out."""

    def score(trainee: Any) -> dict[str, float]:
        layers = trainee.student.config.num_hidden_layers
        last = objective(method.phases(layers)[-1])
        return held_out_loss(trainee, last, held_out)

    return score


def _encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    encoder = model.base_model
    assert isinstance(encoder, PreTrainedModel)
    return encoder
