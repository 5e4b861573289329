"""Students: kinds, shapes, and the layers of its start that a student takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from bertender.core.config import Table, on_demand
from bertender.core.errors import ModelError
from distill.losses.terms import uniform

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from bertender.models.family import Family
    from distill.students.token_use import TokenUse

# --- from distill.students.start_layers
# START_LAYERS: which layers of what it starts from a student takes.
#
# A choice takes the depths (start, student) and returns layers of the start, counted from 0.

LayerChoice = Callable[[int, int], tuple[int, ...]]

PUBLISHED_LAYERS = {(12, 6): (0, 2, 4, 7, 9, 11)}


def _first(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers, as PKD and BERT-of-Theseus do."""
    return tuple(range(student))


def _first_and_last(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers, and the last one in place of the last of them."""
    return (*range(student - 1), start - 1)


def _spread(start: int, student: int) -> tuple[int, ...]:
    """Choose evenly spread layers, the last among them (12 -> 6: 1, 3, 5, 7, 9, 11).

    They are those that the layer map `uniform` matches.
    """
    return tuple(layer - 1 for _, layer in uniform(student, start))


def _alternating(start: int, student: int) -> tuple[int, ...]:
    """Choose the layers of the published DistilBERT for 12 -> 6, and else `spread`."""
    return PUBLISHED_LAYERS.get((start, student)) or _spread(start, student)


START_LAYERS: Table[LayerChoice] = Table(
    "choice of layers",
    {
        "first": _first,
        "first-and-last": _first_and_last,
        "spread": _spread,
        "alternating": _alternating,
    },
)

# --- from distill.students.shape
# Shape of a student, and the teacher layers that it starts from.


@dataclass(frozen=True)
class StudentShape:
    """Shape of a student; None is the teacher's own."""

    layers: int
    hidden_size: int | None = None
    heads: int | None = None
    feed_forward_size: int | None = None
    teacher_layers: tuple[int, ...] | str | None = None
    """The teacher layers to start from, or a row of START_LAYERS; None is `start_layers`."""
    start_layers: str = "spread"
    """A row of START_LAYERS: the method's."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """With a vocabulary of its own; None is the teacher's."""
    tokens: TokenUse | None = None
    """Of the start's tokenizer in the training texts; None where the kind does not count them."""
    texts: int = 1
    """Of an example; 2 where pairs are compared, which some students read apart."""

    def other_widths(self, teacher: PreTrainedModel) -> dict[str, int]:
        """Return the widths that are not the teacher's, by the names of their settings."""
        config = teacher.config
        own = {
            "hidden_size": config.hidden_size,
            "heads": config.num_attention_heads,
            "feed_forward_size": getattr(config, "intermediate_size", None)
            or getattr(config, "hidden_dim", None),
        }
        wanted = {name: getattr(self, name) for name in own}
        return {name: width for name, width in wanted.items() if width not in (None, own[name])}

    def layers_of_start(self, depth: int) -> tuple[int, ...] | None:
        """Return `teacher_layers` as numbers, for a start of so many layers; None if unset."""
        chosen = self.teacher_layers
        return START_LAYERS[chosen](depth, self.layers) if isinstance(chosen, str) else chosen


StudentBuilder: TypeAlias = "Callable[[PreTrainedModel, StudentShape], PreTrainedModel]"


def plain_family(teacher: PreTrainedModel) -> Family:
    """Return the family of a teacher whose layers another class can take, or raise ModelError."""
    return _checked_family(teacher, lambda family: family.plain_layers)


def shortened_family(teacher: PreTrainedModel) -> Family:
    """Return the family of a teacher whose own class may have fewer layers, or raise ModelError."""
    return _checked_family(teacher, lambda family: family.shorter_copies)


def _checked_family(start: PreTrainedModel, is_start: Callable[[Family], bool]) -> Family:
    from bertender.models.families import FAMILIES, family_of

    family = family_of(start)
    if not is_start(family):
        plain = sorted(name for name, row in FAMILIES.items() if is_start(row))
        raise ModelError(
            f"the layers of a {start.config.model_type!r} model are of its own kind, so that "
            f"no student can start from them. Use a method whose students start untrained and give "
            f"a hidden_size (tinybert, minilm), or start from one of these: {', '.join(plain)}."
        )
    return family


def chosen_layers(teacher: PreTrainedModel, shape: StudentShape) -> tuple[int, ...]:
    """Return the teacher layers that the shape has, or else those of its `start_layers`.

    Where the teacher's class cannot have those of a row alone, they are the nearest that it can.

    Raises:
        ModelError: the teacher does not have them.
    """
    from bertender.models.families import encoder_layers, family_of

    depth = len(encoder_layers(teacher))
    chosen = shape.layers_of_start(depth) or START_LAYERS[shape.start_layers](depth, shape.layers)
    _check_layers_there(depth, shape.layers, chosen)
    family, config = family_of(teacher), teacher.config
    if (
        isinstance(shape.teacher_layers, tuple)
        or family.settings_of_layers(config, chosen) is not None
    ):
        return chosen
    return family.nearest_layers(config, chosen)


def check_widths(teacher: PreTrainedModel, shape: StudentShape, what: str, instead: str) -> None:
    """Raise ModelError where a student that keeps its teacher's width is asked for another."""
    if other := shape.other_widths(teacher):
        wanted = ", ".join(f"{name}={width}" for name, width in other.items())
        raise ModelError(
            f"{wanted}: {what} is as wide as its teacher. Leave it out, or choose a method whose "
            f"students have a width of their own, such as {instead}."
        )


def _check_layers_there(depth: int, layers: int, chosen: tuple[int, ...]) -> None:
    if layers > depth:
        raise ModelError(
            f"layers={layers}: the teacher has only {depth}. Choose 1 to {depth} (half is usual)."
        )
    if len(chosen) != layers or not all(0 <= layer < depth for layer in chosen):
        raise ModelError(
            f"teacher_layers={chosen}: give {layers} layers between 0 and {depth - 1}, "
            "or leave it out for the method's choice."
        )


def is_factorised(teacher: PreTrainedModel) -> bool:
    """Return whether a teacher's embeddings are narrower than its layers (ELECTRA)."""
    return bool(_embedding_width(teacher) != teacher.config.hidden_size)


def _embedding_width(teacher: PreTrainedModel) -> int:
    from torch import nn

    table = teacher.get_input_embeddings()
    assert isinstance(table, nn.Embedding)
    return table.embedding_dim


def check_not_factorised(teacher: PreTrainedModel, what: str) -> None:
    """Raise ModelError where a teacher's embeddings are narrower than its layers (ELECTRA)."""
    if is_factorised(teacher):
        raise ModelError(
            f"the teacher's embeddings are {_embedding_width(teacher)} wide and its layers "
            f"{teacher.config.hidden_size}; {what} needs both equal. Choose a method whose student "
            "is of the teacher's own class, such as distilbert."
        )


def check_absolute_positions(teacher: PreTrainedModel, what: str) -> None:
    """Raise ModelError where a teacher's attention alone knows positions, by their distances."""
    from bertender.models.families import has_distances_alone

    if has_distances_alone(teacher.config):
        raise ModelError(
            f"the teacher has position_embedding_type={teacher.config.position_embedding_type!r}, "
            f"and the layers of {what} would lose its positions. Choose a method whose student is "
            "of the teacher's own class, such as distilbert."
        )


# --- from distill.students.kind
# Kinds of students: how each is built, how deep it usually is, and what it needs of its start.
#
# What builds a student loads PyTorch: its module is imported when a student is built, so that
# methods
# and their settings are read without it.


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
    MOBILEBERT_STUDENT,
    build=on_demand("distill.students.mobilebert:tiny_mobilebert_student"),
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
