"""Kinds of students: how each is built, how deep it usually is, and what it needs of its start.

What builds a student loads PyTorch: its module is imported when a student is built, so that methods
and their settings are read without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bertender.core.table import on_demand
from distill.students.shape import StudentBuilder

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
    "STATIC_STUDENT",
    "TINY_MOBILEBERT_STUDENT",
    "StudentKind",
    "all_layers",
    "half_the_layers",
]


def half_the_layers(layers: int) -> int:
    """Return the usual depth of a student: 3 of 6, 6 of 12."""
    return max(layers // 2, 1)


def all_layers(layers: int) -> int:
    """Return the depth of a student that is as deep as what it starts from."""
    return layers


def one_layer(layers: int) -> int:
    """Return the depth of a student without layers to choose."""
    return 1


def three_layers(layers: int) -> int:
    """Return the depth of minibert's paper, whatever the teacher's."""
    return 3


@dataclass(frozen=True)
class StudentKind:
    """A row with a builder: what holds of its students, whichever method trains them."""

    build: StudentBuilder
    layers: Callable[[int], int] = half_the_layers
    """Layers of the teacher -> the student's, where it starts from that and the config has none."""
    layers_of_own_start: Callable[[int], int] = all_layers
    """Layers of another start -> the student's, where the config has none."""
    layer_by_layer: bool = True
    """`teacher_layers` names one for each of the student's layers."""
    starts_from_layers: bool = True
    """It has the shape of its start's layers, which must be alike then."""
    wants_own_start: bool = False
    """It must start from an encoder of its own, not from the teacher."""
    own_vocabulary: bool = False
    """It has a vocabulary of its own, trained on the corpus."""
    labels_words: bool = True
    """It may have a head that labels words."""
    counts_tokens: bool = False
    """Its shape has the `tokens` of its start's tokenizer."""
    linear_head: bool = False
    """It may do without a feed-forward part: `feed_forward_size` may be 0."""
    lacks: frozenset[str] = frozenset()
    """Settings of a shape that it does not have; it has one layer where `layers` is among them."""
    model_type: str | None = None
    """The architecture of all of its students; None where it is that of their start."""
    heads_divide_width: bool = True
    """Its width is a multiple of its heads."""


ALBERT_STUDENT = StudentKind(
    on_demand("distill.students.albert:albert_student"),
    layers=all_layers,
    layer_by_layer=False,
    model_type="albert",
)

BILSTM_STUDENT = StudentKind(
    on_demand("distill.students.bilstm:bilstm_student"),
    layers=one_layer,
    layers_of_own_start=one_layer,
    layer_by_layer=False,
    starts_from_layers=False,
    labels_words=False,
    model_type="bertender-bilstm",
    lacks=frozenset({"heads", "layers", "teacher_layers"}),
)

DISTILBERT_STUDENT = StudentKind(on_demand("distill.students.distilbert:distilbert_or_copy"))

MINIBERT_STUDENT = StudentKind(
    on_demand("distill.students.minibert:minibert_student"), layers=three_layers
)

MOBILEBERT_STUDENT = StudentKind(
    on_demand("distill.students.mobilebert:mobilebert_student"),
    layers=all_layers,
    layer_by_layer=False,
    lacks=frozenset({"teacher_layers"}),
    model_type="mobilebert",
    heads_divide_width=False,
)

TINY_MOBILEBERT_STUDENT = replace(
    MOBILEBERT_STUDENT, build=on_demand("distill.students.mobilebert:tiny_mobilebert_student")
)

ANY_WIDTH_STUDENT = StudentKind(on_demand("distill.students.own_class:any_width_student"))

OWN_VOCABULARY_STUDENT = replace(
    ANY_WIDTH_STUDENT,
    layers=all_layers,
    own_vocabulary=True,
    lacks=frozenset({"teacher_layers"}),
)
"""As deep as its teacher, over a vocabulary that is trained on the corpus."""

SHORTER_STUDENT = StudentKind(on_demand("distill.students.own_class:shorter_student"))

PRETRAINED_STUDENT = replace(SHORTER_STUDENT, layers=all_layers, wants_own_start=True)
"""A small encoder that was pre-trained before, with all of its layers."""

STATIC_STUDENT = StudentKind(
    on_demand("distill.students.static:static_student"),
    layers=one_layer,
    layers_of_own_start=one_layer,
    layer_by_layer=False,
    starts_from_layers=False,
    labels_words=False,
    counts_tokens=True,
    model_type="bertender-static",
    linear_head=True,
    lacks=frozenset({"heads", "layers", "teacher_layers"}),
)
