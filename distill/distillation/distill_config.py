"""Settings of `distill`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from bertender.core.config import Rule, parts_of
from bertender.tasks.registry import TASKS
from distill.augmentation.augment import AugmentedConfig
from distill.distillation.config import StudentConfig

__all__ = ["RULES", "DistillConfig"]

_WITH_TEXTS = [name for name, row in TASKS.items() if row.unlabelled]

RULES: Mapping[str, Rule[DistillConfig]] = {
    "texts that nobody labels": Rule(
        lambda config: not config.changed_method().needs,
        "method {method!r} learns from labels alone, which these texts do not have. Leave out what "
        "is named, or choose a method that needs the teacher.",
        frozenset({"unlabelled", "unlabelled_texts"}),
        beyond_default=True,
    ),
    "copies that nobody labels": Rule(
        lambda config: not config.changed_method().needs,
        "method {method!r} learns from labels alone, which rewritten texts do not have. Leave it "
        "out, or choose a method that needs the teacher.",
        frozenset({"augmentation"}),
        beyond_default=True,
    ),
    "teachers that nobody asks": Rule(
        lambda config: bool(config.more_teachers) and "logits" not in config.changed_method().needs,
        "method {method!r} reads no logits, and only these are averaged. Leave it out, or choose a "
        "method that reads them.",
        frozenset({"more_teachers"}),
    ),
}
"""Conflicts of settings."""


class DistillConfig(StudentConfig, AugmentedConfig):
    """Settings of `distill`."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    student: str | None = Field(
        None,
        description="folder, packaged encoder or hub name that the student starts from, with its "
        "own vocabulary; the teacher by default",
    )
    more_teachers: Annotated[tuple[Path, ...], BeforeValidator(parts_of)] = Field(
        (), description="more artifacts by commas, whose logits are averaged with the teacher's"
    )
    unlabelled: Path | None = Field(
        None, description="more texts to learn from: .txt, .txt.xz, CSV, TSV, JSONL or Parquet"
    )
    unlabelled_texts: int = Field(
        0,
        ge=0,
        description="learn from so many unlabelled texts too, at most, of those that come with the "
        f"task ({', '.join(_WITH_TEXTS)} have some)",
    )
    teacher_cache_mb: int = Field(
        4096,
        ge=0,
        description="most MB of teacher outputs to cache on disk; where they are larger, the "
        "teacher runs in each step",
    )
