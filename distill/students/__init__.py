"""Students: smaller models initialised from a teacher's weights, one kind a file."""

from __future__ import annotations

from distill.students.albert import ALBERT_STUDENT, albert_student
from distill.students.bilstm import BILSTM_STUDENT, bilstm_student
from distill.students.distilbert import DISTILBERT_STUDENT, distilbert_student
from distill.students.kind import StudentKind, half_the_layers
from distill.students.language_head import masked_language_model
from distill.students.minibert import MINIBERT_STUDENT, minibert_student
from distill.students.mobilebert import (
    MOBILEBERT_STUDENT,
    TINY_MOBILEBERT_STUDENT,
    mobilebert_student,
    tiny_mobilebert_student,
)
from distill.students.own_class import (
    ANY_WIDTH_STUDENT,
    OWN_VOCABULARY_STUDENT,
    PRETRAINED_STUDENT,
    SHORTER_STUDENT,
    any_width_student,
    shorter_student,
)
from distill.students.shape import StudentBuilder, StudentShape
from distill.students.start_layers import START_LAYERS
from distill.students.static import STATIC_STUDENT, static_student

__all__ = [
    "ALBERT_STUDENT",
    "ANY_WIDTH_STUDENT",
    "BILSTM_STUDENT",
    "DISTILBERT_STUDENT",
    "MINIBERT_STUDENT",
    "MOBILEBERT_STUDENT",
    "OWN_VOCABULARY_STUDENT",
    "PRETRAINED_STUDENT",
    "SHORTER_STUDENT",
    "START_LAYERS",
    "STATIC_STUDENT",
    "TINY_MOBILEBERT_STUDENT",
    "StudentBuilder",
    "StudentKind",
    "StudentShape",
    "albert_student",
    "any_width_student",
    "bilstm_student",
    "distilbert_student",
    "half_the_layers",
    "masked_language_model",
    "minibert_student",
    "mobilebert_student",
    "shorter_student",
    "static_student",
    "tiny_mobilebert_student",
]
