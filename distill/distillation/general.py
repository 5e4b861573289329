"""General distillation: a smaller encoder learns from an encoder on plain text, before any task.

The resulting artifact is an encoder, for `finetune --teacher` and `distill --student`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from transformers import (
    AutoModelForMaskedLM,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from bertender.core.artifact import Artifact, check_writable
from bertender.core.build_once import work_directory
from bertender.core.errors import ModelError
from bertender.core.findings import Findings
from bertender.core.machine import is_main_process, wait_for_processes
from bertender.models.families import check_positions, padding_embedding
from bertender.models.own_models import ExpectedModel, without_weights
from bertender.text.tokenizer import longest_input, padding_of
from bertender.training.checkpoint import start_digest, tensors_digest
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.loop import training_findings
from bertender.training.steps import Objective
from distill.distillation.config import MASK_PROBABILITY, VOCABULARY_SIZE, GeneralConfig
from distill.distillation.distillation import Distillation, check_compatible
from distill.distillation.start import check_even_start, check_even_teacher, expected_of_kind
from distill.methods import GENERAL_METHODS
from distill.methods.method import Method
from distill.pretraining.corpus import Corpus, Watched, survey
from distill.pretraining.dual_vocabulary import MixedMasking, MixedVocabulary
from distill.pretraining.objectives import MaskedLanguageModel, held_out_loss
from distill.pretraining.rows import pack_rows, stored_parts
from distill.pretraining.vocabularies import stand_in_tokenizer, trained_once
from distill.students import StudentShape
from distill.students.weights import masked_language_model
from distill.teachers.encoders import (
    find_encoder,
    give_every_token_a_row,
    load_classifier,
    load_masked_language_model,
)
from distill.tokenizers import fitting_tokenizer
from distill.trained import artifact_at, corpus_record, write_trained

logger = logging.getLogger(__name__)

UNNAMED_LABELS = ("LABEL_0", "LABEL_1")
"""Labels of a model without a task, as transformers names them."""


def distill_general_by_name(config: GeneralConfig, out: Path) -> Artifact:
    """Load the teacher and corpus that the config names, then call `distill_general`."""
    method = config.changed_method()
    source = find_encoder(config.teacher)
    check_writable(out, artifact_at(source))
    torch.manual_seed(config.seed)  # an encoder without a pooler gets a random pooler
    teacher = GeneralTeacher.load(source, method)
    return distill_general(teacher, Corpus(config.corpus, config.text_column), config, out)


def distill_general(
    teacher: GeneralTeacher, passages: Iterable[str], config: GeneralConfig, out: Path
) -> Artifact:
    """Train a smaller encoder on its teacher's outputs on plain text; write a torch artifact.

    The loss on held-out passages is measured after each epoch.

    Args:
        teacher: encoder to learn from.
        passages: iterated over several times, so not an iterator; an empty passage ends a document.
        config: settings of the distillation.
        out: directory of the artifact.

    Raises:
        UnknownNameError, ConfigError, ModelError: this teacher does not fit the method, its
            weights or the student's shape; raised before training starts.
        DataError: there are too few passages to train and hold out.
    """
    config.check_rules()
    parent = artifact_at(teacher.source)
    check_writable(out, parent)
    distillation = OnCorpus(teacher, passages, config)
    with work_directory(out, "distill-general", config.shaping(), *distillation.identity) as work:
        distillation.read(work)
        trained = distillation.run(config, work, f"distill {out.name}")
        if (padding := padding_embedding(trained.student)) is not None:
            padding.zero_()  # word prediction has trained it, and a text's last token may read it
        if is_main_process():
            write_trained(
                trained.student,
                distillation.tokenizer,
                corpus_record(config.corpus, config.text_column, "loss"),
                Findings(training=training_findings(trained.reports)),
                out=out,
                stage="distill-general",
                config=config,
                parent=parent,
                projections=trained.projections,
                method=config.method,
            )
        wait_for_processes()
    return Artifact.load(out)


@dataclass(frozen=True)
class GeneralTeacher:
    """An encoder to learn from, without a task."""

    source: str
    classifier: PreTrainedModel
    """The encoder with a new classification head, from which methods build students."""
    language_model: PreTrainedModel | None
    """The encoder with a masked-language-model head, where the method predicts words. The head is
    the encoder's own where a loss reads its predictions, else new."""

    @classmethod
    def load(cls, source: str, method: Method) -> Self:
        """Load an encoder with the heads that a method needs.

        Raises:
            ModelError: the encoder cannot be loaded, or lacks a head that the method reads.
        """
        language_model = None
        if method.predicts_words:
            new_head = not method.reads_predicted_words
            try:
                language_model = load_masked_language_model(source, new_head=new_head)
            except ModelError as error:
                if new_head:
                    raise
                rows = GENERAL_METHODS.items()
                others = [name for name, row in rows if not row.reads_predicted_words]
                raise ModelError(
                    f"method {method.name!r} reads which words its teacher predicts: {error} "
                    f"Methods that do not: {', '.join(others)}."
                ) from None
        classifier, tokenizer = load_classifier(source, UNNAMED_LABELS, uses_head=False)
        if language_model is not None:
            give_every_token_a_row(language_model, tokenizer)
        return cls(source, classifier, language_model)

    @property
    def model(self) -> PreTrainedModel:
        """The model whose signals the losses read."""
        return self.language_model or _encoder_of(self.classifier)

    def student(self, method: Method, shape: StudentShape) -> PreTrainedModel:
        """Return the method's student: like the teacher, a language model or a bare encoder."""
        student = method.build(self.classifier, shape)
        if self.language_model is None:
            return _encoder_of(student)
        return masked_language_model(student, self.language_model)


def _encoder_of(model: PreTrainedModel) -> PreTrainedModel:
    encoder = model.base_model
    assert isinstance(encoder, PreTrainedModel)
    return encoder


class OnCorpus(Distillation):
    """A distillation on a corpus. The corpus is read once to check it.

    Until `read`, the student has the teacher's vocabulary, even if it gets one of its own.

    Raises:
        UnknownNameError, ConfigError, ModelError: this teacher does not fit the method, its
            weights or the student's shape.
        DataError: there are too few passages to train and hold out.
    """

    training: TokenDataset
    held_out: TokenDataset

    def __init__(
        self, teacher: GeneralTeacher, passages: Iterable[str], config: GeneralConfig
    ) -> None:
        method = config.changed_method()
        check_general_teacher(teacher.model.config, method)
        theirs = fitting_tokenizer(teacher.source, teacher.model)
        # the student's own vocabulary is not trained yet, so the teacher's stands in for it
        stand_in = theirs if method.student.own_vocabulary else None
        student = new_general_student(teacher, method, config, stand_in)
        check_compatible(method, student, teacher.model)
        tokenizer = fitting_tokenizer(teacher.source, student)
        if config.is_explicit("max_length"):  # a tokenizer may read less than its model
            tokenizer.model_max_length = max(longest_input(tokenizer), config.max_length)
        phases = method.at(student.config.num_hidden_layers).phases
        super().__init__(student, teacher.model, tokenizer, phases)
        self.source, self.method, self.config = teacher, method, config
        self.masking: Callable[[TensorBatch, int], TensorBatch] | None = None
        self.passages, self.surveyed = passages, survey(passages)
        self.surveyed.check_enough()
        weights = tensors_digest(teacher.model.state_dict())
        self.identity: tuple[Any, ...] = (
            self.surveyed.sha256,
            (weights, start_digest(teacher.model, tokenizer)),
        )
        """Inputs of the run besides the settings."""

    def read(self, work: Path) -> None:
        """Build the training rows, and the student's vocabulary where it has its own.

        Parts that `work` already has are reused.
        """
        config, tokenizer = self.config, self.tokenizer
        share = config.mask_probability or MASK_PROBABILITY
        longest = min(config.max_length, longest_input(tokenizer))
        if not self.method.student.own_vocabulary:
            rows = partial(pack_rows, tokenizer=tokenizer, max_length=longest)
            padding = padding_of(tokenizer)
            if self.method.predicts_words:  # otherwise the tokenizer may lack a mask token
                self.masking = MaskedLanguageModel(tokenizer, share, config.seed).masked_batch
        else:
            vocabulary = self._own_vocabulary(work / "vocabulary")
            rows = partial(vocabulary.rows, max_length=longest, seed=config.seed)
            padding = vocabulary.padding
            self.masking = MixedMasking(vocabulary, share, config.seed)
            self.tokenizer = vocabulary.student
            self.student = new_general_student(self.source, self.method, config, vocabulary.student)
        self.training, self.held_out = stored_parts(
            self.passages, self.surveyed, rows, work / "blocks", padding
        )

    def _own_vocabulary(self, directory: Path) -> MixedVocabulary:
        """Train the student's vocabulary and pair it with the teacher's."""
        most = self.config.vocabulary_size or VOCABULARY_SIZE
        passages = Watched(self.passages, self.surveyed, "train the student's vocabulary")
        longest = longest_input(self.tokenizer)
        own = trained_once("wordpiece", passages, most, longest, directory)
        logger.info("the student's vocabulary has %d entries, %d were allowed", len(own), most)
        # RoBERTa's tokenizer refuses single words without a prefix space; others ignore it
        by_words = fitting_tokenizer(self.source.source, self.teacher, add_prefix_space=True)
        return MixedVocabulary(own, by_words, self.teacher.config.vocab_size)

    def examples(self) -> TokenDataset:
        return self.training

    def evaluate(self, training_module: Any, objective: Objective) -> dict[str, float]:
        return held_out_loss(training_module, objective, self.held_out)

    def masked(self, batch: TensorBatch, step: int) -> TensorBatch:
        assert self.masking is not None  # `read` sets it where the method masks words
        return self.masking(batch, step)


def check_general_teacher(config: PretrainedConfig, method: Method) -> None:
    """Raise ModelError where the method uses layers of a pruned teacher."""
    check_even_teacher(config, method)
    check_even_start(config, method)


def new_general_student(
    teacher: GeneralTeacher,
    method: Method,
    config: GeneralConfig,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> PreTrainedModel:
    """Build the student of the config, with its teacher's vocabulary or its own.

    Raises:
        ConfigError: a `max_length` that is set exceeds the teacher's positions.
    """
    if config.is_explicit("max_length"):
        check_positions(config.max_length, teacher.model.config)
    torch.manual_seed(config.seed)  # weights that do not come from the teacher are random
    shape = config.shape(method, teacher.model.config.num_hidden_layers)
    return teacher.student(method, replace(shape, tokenizer=tokenizer))


def expected_general_student(
    config: GeneralConfig, teacher: ExpectedModel | None
) -> ExpectedModel | None:
    """Return the expected student of a distillation that has not run, as far as it is known.

    Raises:
        ConfigError, ModelError: errors that `distill-general` would raise for this teacher.
    """
    method = config.changed_method()
    if teacher is not None:
        check_general_teacher(teacher.model.config, method)
    if teacher is None or not teacher.shape_known:
        return expected_of_kind(method.student)
    encoder = teacher.model

    def build() -> PreTrainedModel:
        language_model = None
        if method.predicts_words:
            language_model = AutoModelForMaskedLM.from_config(
                encoder.config, trust_remote_code=False
            )
        general = GeneralTeacher(config.teacher, encoder, language_model)
        tokenizer = stand_in_tokenizer() if method.student.own_vocabulary else None
        student = new_general_student(general, method, config, tokenizer)
        check_compatible(method, student, general.model)
        return student

    student = without_weights(build)
    if student is None:
        return expected_of_kind(method.student)
    return ExpectedModel.of(student.config)
