"""The teacher of a general distillation: an encoder without a task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from distill.methods import GENERAL_METHODS
from distill.methods.method import Method
from distill.students import StudentShape
from distill.students.language_head import masked_language_model
from distill.teachers.encoders import (
    give_every_token_a_row,
    load_classifier,
    load_masked_language_model,
)

__all__ = ["GeneralTeacher"]

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
