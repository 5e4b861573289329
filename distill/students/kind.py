"""A kind of student: how it is built, how deep it usually is, and what it needs of its start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from distill.students.shape import StudentBuilder

__all__ = ["StudentKind", "all_layers", "half_the_layers"]


def half_the_layers(layers: int) -> int:
    """Return the usual depth of a student: 3 of 6, 6 of 12."""
    return max(layers // 2, 1)


def all_layers(layers: int) -> int:
    """Return the depth of a student that is as deep as what it starts from."""
    return layers


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
