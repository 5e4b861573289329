"""Students: smaller models initialised from a teacher's weights, one kind a file."""

from __future__ import annotations

from distill.students.albert import albert_student
from distill.students.bilstm import bilstm_student
from distill.students.distilbert import distilbert_student
from distill.students.language_head import masked_language_model
from distill.students.minibert import minibert_student
from distill.students.mobilebert import mobilebert_student, tiny_mobilebert_student
from distill.students.own_class import any_width_student, shorter_student
from distill.students.shape import (
    StartLayers,
    StudentBuilder,
    StudentShape,
    alternating_layers,
    first_layers,
    spread_layers,
)

__all__ = [
    "StartLayers",
    "StudentBuilder",
    "StudentShape",
    "albert_student",
    "alternating_layers",
    "any_width_student",
    "bilstm_student",
    "distilbert_student",
    "first_layers",
    "masked_language_model",
    "mobilebert_student",
    "minibert_student",
    "shorter_student",
    "spread_layers",
    "tiny_mobilebert_student",
]
