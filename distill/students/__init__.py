"""Students: smaller models initialised from a teacher's weights; what builds each is a file."""

from __future__ import annotations

from distill.students.kind import (
    ALBERT_STUDENT,
    ANY_WIDTH_STUDENT,
    BILSTM_STUDENT,
    DISTILBERT_STUDENT,
    MINIBERT_STUDENT,
    MOBILEBERT_STUDENT,
    OWN_VOCABULARY_STUDENT,
    PRETRAINED_STUDENT,
    SHORTER_STUDENT,
    STATIC_STUDENT,
    TINY_MOBILEBERT_STUDENT,
    StudentKind,
    half_the_layers,
)
from distill.students.shape import StudentBuilder, StudentShape
from distill.students.start_layers import START_LAYERS

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
    "half_the_layers",
]
