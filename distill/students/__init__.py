"""Students: what a method trains, its shape, and the layers of its start that it takes.

PyTorch is imported where a student is built: methods and their settings are read without it.
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
    """A kind of student: how it is built, and what holds for all students of the kind."""

    usual_layers: ClassVar[Literal["half", "all"] | int] = "half"
    """Depth where the config names none: a part of the teacher's (3 of 6), or a number."""
    layer_by_layer: ClassVar[bool] = True
    """`teacher_layers` names one for each of the student's layers."""
    starts_from_layers: ClassVar[bool] = True
    """Whether it has the shape of its start's layers, which must be alike then."""
    wants_own_start: ClassVar[bool] = False
    """Whether it must start from an encoder of its own, not from the teacher."""
    own_vocabulary: ClassVar[bool] = False
    """Whether it has a vocabulary of its own, trained on the corpus."""
    labels_words: ClassVar[bool] = True
    """Whether it may have a head that labels words."""
    counts_tokens: ClassVar[bool] = False
    """Its shape has the `tokens` of its start's tokenizer."""
    linear_head: ClassVar[bool] = False
    """Whether it may have no feed-forward part: `feed_forward_size` may be 0."""
    lacks: ClassVar[frozenset[str]] = frozenset()
    """Settings of a shape that it does not have; it has one layer where `layers` is among them."""
    model_type: ClassVar[str | None] = None
    """Architecture of all of its students; None where it is that of their start."""
    heads_divide_width: ClassVar[bool] = True
    """Its width is a multiple of its heads."""

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build a student, untrained, under a head that labels texts.

        Args:
            start: the classifier that it takes weights from, and all of the shape that is not set.
            shape: of the student.

        Raises:
            ModelError: no such student can be made of this start.
        """
        raise NotImplementedError

    def depth(self, layers: int, *, own_start: bool = False) -> int:
        """Return the usual depth of a student.

        Args:
            layers: of its start.
            own_start: whether the start is an encoder of the student's own, not the teacher.
        """
        if "layers" in self.lacks:
            return 1
        if own_start or self.usual_layers == "all":
            return layers
        return max(layers // 2, 1) if self.usual_layers == "half" else self.usual_layers


@dataclass(frozen=True)
class StudentShape:
    """Shape of a student; None is the start's own."""

    layers: int
    hidden_size: int | None = None
    heads: int | None = None
    feed_forward_size: int | None = None
    teacher_layers: tuple[int, ...] | str | None = None
    """Layers of the start to take, or a row of START_LAYERS; None is `start_layers`."""
    start_layers: str = "spread"
    """A row of START_LAYERS: the method's."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """With a vocabulary of its own; None is the start's."""
    tokens: TokenUse | None = None
    """Of the start's tokenizer in the training texts; None where the kind does not count them."""
    texts: int = 1
    """Of an example; 2 where pairs are compared, which some students read apart."""

    def other_widths(self, start: PreTrainedModel) -> dict[str, int]:
        """Return the widths that are not the start's, by the names of their settings."""
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
        """Return `teacher_layers` as numbers, for a start of so many layers; None if unset."""
        chosen = self.teacher_layers
        return START_LAYERS[chosen](depth, self.layers) if isinstance(chosen, str) else chosen


class ShorterStudent(StudentKind):
    """A model of its start's own class with fewer layers, and all else the start's."""

    def build(self, start: PreTrainedModel, shape: StudentShape) -> PreTrainedModel:
        """Build the student.

        Raises:
            ModelError: the start has fewer layers, or its class has none of these alone; or the
                shape asks for another width.
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
    """A small encoder that was pre-trained before, with all of its layers."""

    usual_layers = "all"
    wants_own_start = True


def _first(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers, as PKD and BERT-of-Theseus do."""
    return tuple(range(student))


def _first_and_last(start: int, student: int) -> tuple[int, ...]:
    """Choose the first layers, and the last one in place of the last of them."""
    return (*range(student - 1), start - 1)


def _spread(start: int, student: int) -> tuple[int, ...]:
    """Choose the layers that the layer map `uniform` matches (12 -> 6: 1, 3, 5, 7, 9, 11)."""
    return tuple(layer - 1 for _, layer in uniform(student, start))


def _alternating(start: int, student: int) -> tuple[int, ...]:
    """Choose the layers of the published DistilBERT for 12 -> 6, and else `spread`."""
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
"""Layers of its start that a student takes."""


def chosen_layers(start: PreTrainedModel, shape: StudentShape) -> tuple[int, ...]:
    """Return the layers of the start that the shape names, or else those of its `start_layers`.

    Where the start's class cannot have those of a row alone, they are the nearest that it can.

    Raises:
        ModelError: the start does not have them.
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
    """Return the family of a model whose layers another class can take, or raise ModelError."""
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
    """Raise ModelError where a student that keeps its teacher's width is asked for another."""
    if other := shape.other_widths(start):
        wanted = ", ".join(f"{name}={width}" for name, width in other.items())
        raise ModelError(
            f"{wanted}: {what} is as wide as its teacher. Leave it out, or choose a method whose "
            "students have a width of their own, such as tinybert."
        )


def embedding_width(start: PreTrainedModel) -> int:
    """Return the width of the word embeddings, which is not that of the layers in ELECTRA."""
    return int(start.get_input_embeddings().get_parameter("weight").shape[1])


def check_not_factorised(start: PreTrainedModel, what: str) -> None:
    """Raise ModelError where a model's embeddings are narrower than its layers (ELECTRA)."""
    if embedding_width(start) != start.config.hidden_size:
        raise ModelError(
            f"the teacher's embeddings are {embedding_width(start)} wide and its layers "
            f"{start.config.hidden_size}; {what} needs both equal. Choose a method whose student "
            "is of the teacher's own class, such as distilbert."
        )
