"""Checks of students that have a table of tokens and no layers of a transformer."""

from __future__ import annotations

from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.models.families import FAMILIES
from bertender.models.own_models import OWN_MODELS
from distill.students.shape import StudentShape

__all__ = ["check_no_layers", "check_tokenizer_known"]


def check_tokenizer_known(teacher: PreTrainedModel, what: str) -> None:
    """Raise ModelError where it is not known how the start's tokenizer lays out its texts."""
    known = {*FAMILIES, *OWN_MODELS}
    if teacher.config.model_type not in known:
        raise ModelError(
            f"{what} cannot start from a {teacher.config.model_type!r} model: bertender "
            "does not know where its tokenizer ends and pads texts. Start it from an encoder of "
            f"these: {', '.join(sorted(known))}."
        )


def check_no_layers(shape: StudentShape, what: str) -> None:
    """Raise ModelError where a student without layers and heads is asked for some."""
    if shape.layers != 1:
        raise ModelError(
            f"layers={shape.layers}: {what} has one layer at most. Leave it out; hidden_size makes "
            "it wider."
        )
    for name in ("heads", "teacher_layers"):
        if getattr(shape, name) is not None:
            raise ModelError(
                f"{name}={getattr(shape, name)}: {what} takes no attention heads and "
                "none of its teacher's layers. Leave it out."
            )
