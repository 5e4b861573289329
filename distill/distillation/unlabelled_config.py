"""Settings of texts without labels, which `distill` and the recovery of `prune` learn from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from bertender.core.config import Rule
from bertender.tasks.loading import TASKS
from bertender.training.config import TrainingConfig

_WITH_TEXTS = [name for name, row in TASKS.items() if row.unlabelled]

FILE_RULES: Mapping[str, Rule[UnlabelledConfig]] = {
    "part of no file": Rule(
        lambda config: config.unlabelled is None,
        "it limits the texts of a file, and unlabelled names none. Give that, or leave this out.",
        frozenset({"max_unlabelled"}),
        beyond_default=True,
    ),
}
"""Conflicts of the settings of a file."""

RULES: Mapping[str, Rule[FilteredConfig]] = {
    "filters of no texts": Rule(
        lambda config: not config.learns_unlabelled,
        "there are no unlabelled texts to leave some out of. Give unlabelled or unlabelled_texts, "
        "or leave it out.",
        frozenset(
            {
                "unlabelled_distinct",
                "unlabelled_max_entropy",
                "unlabelled_max_words",
                "unlabelled_min_words",
            }
        ),
        beyond_default=True,
    ),
    "no length that stays": Rule(
        lambda config: (
            config.unlabelled_max_words is not None
            and config.unlabelled_max_words < (config.unlabelled_min_words or 1)
        ),
        "every text would be shorter or longer. Give unlabelled_max_words at least as many.",
        frozenset({"unlabelled_max_words"}),
        against="unlabelled_min_words",
    ),
}
"""Conflicts of settings."""


class UnlabelledConfig(TrainingConfig):
    """Settings of training on texts without labels too."""

    panel: ClassVar[str] = "Texts without labels"
    rules: ClassVar[Mapping[str, Rule[Any]]] = FILE_RULES

    unlabelled: Path | None = Field(
        None, description="more texts to learn from: .txt, .txt.xz, CSV, TSV, JSONL or Parquet"
    )
    max_unlabelled: int | None = Field(
        None, ge=1, description="use only so many texts of that file, the first that filters leave"
    )
    unlabelled_texts: int = Field(
        0,
        ge=0,
        description="learn from so many unlabelled texts too, at most, of those that come with the "
        f"task ({', '.join(_WITH_TEXTS)} have some)",
    )

    @property
    def learns_unlabelled(self) -> bool:
        """Whether texts without labels are learned from."""
        return self.unlabelled is not None or self.unlabelled_texts > 0


class FilteredConfig(UnlabelledConfig):
    """Settings of training on those of the texts without labels that some filters leave."""

    panel: ClassVar[str] = "Texts without labels"
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    unlabelled_min_words: int | None = Field(
        None, ge=1, description="leave out unlabelled texts of fewer words, by white space"
    )
    unlabelled_max_words: int | None = Field(
        None, ge=1, description="leave out unlabelled texts of more words"
    )
    unlabelled_distinct: bool = Field(
        False,
        description="leave out unlabelled texts that are there twice or have a label elsewhere; "
        "upper case and white space make no difference",
    )
    unlabelled_max_entropy: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="leave out unlabelled texts on which the teacher's distribution has a higher "
        "entropy, as a share of the highest: 0 is sure of a label, 1 has all alike",
    )
