"""Augmentations by name, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from bertender.core.config import Rule, Table
from bertender.training.config import TrainingConfig


@dataclass(frozen=True)
class Augmentation:
    """A data augmentation; `augment.REWRITERS` has its code."""

    summary: str
    paper: str
    copies: int = 20
    """Default number of copies of each text."""
    pair_turns: tuple[tuple[bool, bool], ...] = ((True, True),)
    """Which texts of a pair are rewritten; the copies cycle through these."""
    asks_language_model: bool = False
    """Whether words come from a masked language model, if there is one."""
    writes_mask: bool = False
    """Whether the copies have the teacher's mask token."""


AUGMENTATIONS = Table(
    "augmentation",
    {
        "bilstm": Augmentation(
            summary="words masked, swapped within their class of form, and runs of words cut out",
            paper="Tang et al. 2019, arXiv 1903.12136",
            pair_turns=((True, False), (False, True), (True, True)),
            writes_mask=True,
        ),
        "tinybert": Augmentation(
            summary="words replaced by what a masked language model, or the teacher's embeddings, "
            "propose",
            paper="Jiao et al. 2019, arXiv 1909.10351",
            asks_language_model=True,
        ),
    },
)

_ASKING = [name for name, row in AUGMENTATIONS.items() if row.asks_language_model]

RULES: Mapping[str, Rule[AugmentedConfig]] = {
    "settings without an augmentation": Rule(
        lambda config: config.augmentation is None,
        f"nothing is rewritten without augmentation. Name one: {', '.join(AUGMENTATIONS)}; or "
        "leave it out.",
        frozenset({"augmented_copies", "augmentation_model"}),
        beyond_default=True,
    ),
    "language model without use": Rule(
        lambda config: config.augmentation not in _ASKING,
        f"augmentation {{augmentation!r}} asks no language model. Leave it out; "
        f"{', '.join(_ASKING)} does.",
        frozenset({"augmentation_model"}),
        beyond_default=True,
    ),
}
"""Conflicts of settings: without an augmentation, or unused by the chosen one."""


class AugmentedConfig(TrainingConfig):
    """Settings of training on augmented copies of the texts."""

    panel: ClassVar[str] = "Augmentation"
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
