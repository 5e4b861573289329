"""Settings of an augmentation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from bertender.core.config import Rule
from bertender.training.config import TrainingConfig
from distill.augmentation import AUGMENTATIONS

__all__ = ["AugmentedConfig"]

_ASKING = [name for name, row in AUGMENTATIONS.items() if row.asks_language_model]

RULES: Mapping[str, Rule[AugmentedConfig]] = {
    "copies by no augmentation": Rule(
        lambda config: config.augmentation is None,
        f"nothing is rewritten without augmentation. Name one: {', '.join(AUGMENTATIONS)}; or "
        "leave it out.",
        frozenset({"augmented_copies", "augmentation_model"}),
        beyond_default=True,
    ),
    "a model that nothing asks": Rule(
        lambda config: config.augmentation not in _ASKING,
        f"augmentation {{augmentation!r}} asks no language model. Leave it out; "
        f"{', '.join(_ASKING)} does.",
        frozenset({"augmentation_model"}),
        beyond_default=True,
    ),
}
"""Settings of an augmentation that is not there or does not read them."""


class AugmentedConfig(TrainingConfig):
    """Settings of training on rewritten copies of the texts."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    augmentation: Annotated[str | None, AUGMENTATIONS.validator()] = Field(
        None,
        description="learn from rewritten copies of the texts too, which takes as many times "
        f"longer: {', '.join(AUGMENTATIONS)}; none by default",
    )
    augmented_copies: int | None = Field(
        None,
        ge=1,
        description="copies of each text, equal ones dropped; the augmentation's own number by "
        "default",
    )
    augmentation_model: str | None = Field(
        None,
        description="folder, artifact of `pretrain`, or hub name of a masked language model that "
        "proposes words; what the teacher came from by default, if it is one",
    )
