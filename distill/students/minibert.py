"""(goes into methods.minibert by hand)"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from bertender.models.families import FAMILIES, family_of
from bertender.models.family import Family
from distill.students.own_class import any_width_student
from distill.students.student import StudentShape
from distill.students.weights import factors, position_table, weight_of

HIDDEN_SIZE = 256
HEAD_DIM = 64


def minibert_student(teacher: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
    """Build a BERT 256 wide over the teacher's vocabulary, or as wide as a narrower teacher.

    Its layers are random. Its words and positions are the teacher's, projected on the principal
    directions of the word table, so that they keep their angles and distances as well as so few
    dimensions can; they are random too where the table is smaller than the student is wide. A
    student as wide as what it starts from (a MiniBERT that was pre-trained) keeps its layers.

    Raises:
        ModelError: as `any_width_student`.
    """
    width = shape.hidden_size or min(HIDDEN_SIZE, teacher.config.hidden_size)
    if width == teacher.config.hidden_size:
        return any_width_student(teacher, shape)
    heads = shape.heads or _heads_of(width)
    student = any_width_student(teacher, replace(shape, hidden_size=width, heads=heads))
    _project_embeddings(teacher, student, family_of(teacher))
    return student


def _heads_of(width: int) -> int:
    """Return how many heads a student has, each as wide as a BERT's or wider."""
    most = max(width // HEAD_DIM, 1)
    return next(heads for heads in range(most, 0, -1) if width % heads == 0)


@torch.no_grad()
def _project_embeddings(teacher: PreTrainedModel, student: PreTrainedModel, family: Family) -> None:
    words = weight_of(teacher.base_model, family.word_embeddings)
    width = student.config.hidden_size
    if min(words.shape) < width:
        return
    own, target = FAMILIES["bert"], student.base_model
    _, widening = factors(words, width)
    directions = functional.normalize(widening, dim=1).T  # (teacher's hidden, hidden), orthonormal
    weight_of(target, own.word_embeddings).copy_(words @ directions)
    if family.plain_layers:
        assert own.position_embeddings and own.token_type_embeddings
        positions = position_table(teacher, family)
        weight_of(target, own.position_embeddings).copy_(positions @ directions)
        weight_of(target, own.token_type_embeddings).zero_()  # position_table holds the first one
