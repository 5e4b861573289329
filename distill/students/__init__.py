"""Students: their kinds, their shapes, and the layers that they take from their start.

PyTorch is imported only when a student is built, since settings of methods work without it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from bertender.core.config import Table
from bertender.core.errors import ModelError
from distill.losses.terms import uniform

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from bertender.models.family import Family
    from distill.tokenizers import TokenUse


class StudentKind:
    """A kind of student: how it is built, and properties of all its students."""

    usual_layers: ClassVar[Literal["half", "all"] | int] = "half"
    """Default depth: a part of the teacher's (3 of 6), or a number."""
    layer_by_layer: ClassVar[bool] = True
    """Whether `teacher_layers` names one layer for each of the student's."""
    starts_from_layers: ClassVar[bool] = True
    """Whether the student has the shape of its start's layers, which must be alike."""
    wants_own_start: ClassVar[bool] = False
    """Whether the student must start from an encoder other than the teacher."""
    own_vocabulary: ClassVar[bool] = False
    """Whether the student has its own vocabulary, trained on the corpus."""
    labels_words: ClassVar[bool] = True
    """Whether the student may have a head that labels words."""
    counts_tokens: ClassVar[bool] = False
    """Whether building needs token counts of the training texts (`StudentShape.tokens`)."""
    linear_head: ClassVar[bool] = False
    """Whether `feed_forward_size` may be 0, for a linear head."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Shape settings that the student does not have; without `layers` it has one layer."""
    model_type: ClassVar[str | None] = None
    """Architecture of all students; None for the start's architecture."""
    heads_divide_width: ClassVar[bool] = True
    """Whether the width is a multiple of the heads."""

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build an untrained student with a head that labels texts.

        Args:
            start: classifier that gives weights, and the shape where it is not set.
            shape: shape of the student.

        Raises:
            ModelError: this start allows no such student.
        """
        raise NotImplementedError

    def depth(self, layers: int, *, own_start: bool = False) -> int:
        """Return the usual depth of a student.

        Args:
            layers: number of layers of the start.
            own_start: whether the start is an encoder other than the teacher.
        """
        if "layers" in self.lacks:
            return 1
        if own_start or self.usual_layers == "all":
            return layers
        return max(layers // 2, 1) if self.usual_layers == "half" else self.usual_layers


@dataclass(frozen=True)
class StudentShape:
    """Shape of a student; None takes the start's value."""

    layers: int
    hidden_size: int | None = None
    heads: int | None = None
    feed_forward_size: int | None = None
    teacher_layers: tuple[int, ...] | str | None = None
    """Layers of the start to take, or a name in START_LAYERS; None takes `start_layers`."""
    start_layers: str = "spread"
    """The method's choice, a name in START_LAYERS."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """Tokenizer of the student's own vocabulary; None for the start's."""
    tokens: TokenUse | None = None
    """Token counts in the training texts; None for kinds that do not need them."""
    texts: int = 1
    """Texts per example; 2 for pairs, whose texts some students encode separately."""
    own_start: bool = False
    """Whether the start is an encoder other than the teacher."""

    def other_widths(self, start: PreTrainedModel) -> dict[str, int]:
        """Return the widths that differ from the start's, by setting."""
        config = start.config
        own = {
            "hidden_size": config.hidden_size,
            "heads": config.num_attention_heads,
            "feed_forward_size": getattr(config, "intermediate_size", None)
            or getattr(config, "hidden_dim", None),
        }
        wanted = {name: getattr(self, name) for name in own}
        return {name: width for name, width in wanted.items() if width not in (None, own[name])}

    def layers_of_start(self, depth: int) -> tuple[int, ...] | None:
        """Return `teacher_layers` as numbers, for a start of `depth` layers; None if unset."""
        chosen = self.teacher_layers
        return START_LAYERS[chosen](depth, self.layers) if isinstance(chosen, str) else chosen


class ShorterStudent(StudentKind):
    """A shorter copy of its start: the same class and weights, with fewer layers."""

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Raises:
            ModelError: the start has too few layers, or its class does not allow only these; or
                the shape asks for another width.
        """
        from bertender.models.families import encoder_layers, family_of

        family = family_of(start)
        chosen = chosen_layers(start, shape)
        check_widths(start, shape, "a shorter copy of the teacher")
        config = copy.deepcopy(start.config)
        settings = family.settings_of_layers(config, chosen)
        if settings is None:
            raise ModelError(
                f"teacher_layers={chosen}: a {config.model_type!r} model of these layers alone "
                "would compute them in another way than the teacher. Give others, such as "
                f"{family.nearest_layers(config, chosen)}, or leave it out."
            )
        config.update({**settings, "num_hidden_layers": shape.layers})
        student: PreTrainedModel = type(start)(config)
        weights = {
            name: weight
            for name, weight in start.state_dict().items()
            if f"{family.layers}." not in name
        }
        student.load_state_dict(weights, strict=False)
        for number, target in zip(chosen, encoder_layers(student), strict=True):
            target.load_state_dict(encoder_layers(start)[number].state_dict())
        return student


class PretrainedStudent(ShorterStudent):
    """A small pre-trained encoder, with all of its layers."""

    usual_layers = "all"
    wants_own_start = True


def _first(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers, like PKD and BERT-of-Theseus."""
    return tuple(range(student))


def _first_and_last(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers and the last layer."""
    return (*range(student - 1), start - 1)


def _spread(start: int, student: int) -> tuple[int, ...]:
    """Choose the layers that the layer map `uniform` matches (12 -> 6: 1, 3, 5, 7, 9, 11)."""
    return tuple(layer - 1 for _, layer in uniform(student, start))


def _alternating(start: int, student: int) -> tuple[int, ...]:
    """Choose the layers of the published DistilBERT for 12 -> 6, else `spread`."""
    return (0, 2, 4, 7, 9, 11) if (start, student) == (12, 6) else _spread(start, student)


LayerChoice = Callable[[int, int], tuple[int, ...]]
"""(layers of the start, of the student) -> layers of the start, counted from 0"""
START_LAYERS: Table[LayerChoice] = Table(
    "choice of layers",
    {
        "first": _first,
        "first-and-last": _first_and_last,
        "spread": _spread,
        "alternating": _alternating,
    },
)
"""Choices of the start's layers that a student takes, by name."""


def chosen_layers(start: PreTrainedModel, shape: StudentShape) -> tuple[int, ...]:
    """Return the layers of the start that the shape names, or else its `start_layers`.

    Where the start's class does not allow the layers of `start_layers`, the nearest are taken.

    Raises:
        ModelError: the start lacks some of the layers.
    """
    from bertender.models.families import encoder_layers, family_of

    depth = len(encoder_layers(start))
    chosen = shape.layers_of_start(depth) or START_LAYERS[shape.start_layers](depth, shape.layers)
    if shape.layers > depth:
        raise ModelError(
            f"layers={shape.layers}: the teacher has only {depth}. Choose 1 to {depth} (half is "
            "usual)."
        )
    if len(chosen) != shape.layers or not all(0 <= layer < depth for layer in chosen):
        raise ModelError(
            f"teacher_layers={chosen}: give {shape.layers} layers between 0 and {depth - 1}, "
            "or leave it out for the method's choice."
        )
    family, config = family_of(start), start.config
    given = isinstance(shape.teacher_layers, tuple)
    if given or family.settings_of_layers(config, chosen) is not None:
        return chosen
    return family.nearest_layers(config, chosen)


def plain_family(start: PreTrainedModel) -> Family:
    """Return the family of a model with plain layers, which other classes can copy.

    Raises:
        ModelError: the architecture has other layers.
    """
    from bertender.models.families import FAMILIES, family_of

    family = family_of(start)
    if not family.plain_layers:
        plain = sorted(name for name, row in FAMILIES.items() if row.plain_layers)
        raise ModelError(
            f"the layers of a {start.config.model_type!r} model are of its own kind, so that "
            f"no student can start from them. Use a method whose students start untrained and give "
            f"a hidden_size (tinybert, minilm), or start from one of these: {', '.join(plain)}."
        )
    return family


def check_widths(start: PreTrainedModel, shape: StudentShape, what: str) -> None:
    """Raise ModelError where the shape asks for another width than the teacher's."""
    if other := shape.other_widths(start):
        wanted = ", ".join(f"{name}={width}" for name, width in other.items())
        raise ModelError(
            f"{wanted}: {what} is as wide as its teacher. Leave it out, or choose a method whose "
            "students have a width of their own, such as tinybert."
        )


def embedding_width(start: PreTrainedModel) -> int:
    """Return the width of the word embeddings, which differs from the layers' in ELECTRA."""
    return int(start.get_input_embeddings().get_parameter("weight").shape[1])


def check_not_factorised(start: PreTrainedModel, what: str) -> None:
    """Raise ModelError where a model's embeddings are narrower than its layers (ELECTRA)."""
    if embedding_width(start) != start.config.hidden_size:
        raise ModelError(
            f"the teacher's embeddings are {embedding_width(start)} wide and its layers "
            f"{start.config.hidden_size}; {what} needs both equal. Choose a method whose student "
            "is of the teacher's own class, such as distilbert."
        )
