"""Shape of a student, and the teacher layers that it starts from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from bertender.core.errors import ModelError
from distill.students.start_layers import START_LAYERS

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from bertender.models.family import Family
    from distill.students.token_use import TokenUse

__all__ = [
    "StudentBuilder",
    "StudentShape",
    "check_absolute_positions",
    "check_not_factorised",
    "check_widths",
    "chosen_layers",
    "is_factorised",
    "plain_family",
    "shortened_family",
]


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
