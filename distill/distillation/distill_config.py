"""Settings of `distill`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from bertender.core.config import Rule, parts_of
from bertender.core.errors import ConfigError
from bertender.training.config import JudgedConfig
from distill.augmentation.config import AugmentedConfig
from distill.distillation.config import StudentConfig
from distill.distillation.unlabelled_config import FilteredConfig

ALL_TOKENS = "all"
AUTO_VOCABULARY = "auto"
"""The tokens of the texts, where these are enough of them (`distillation.vocabulary`)."""


def _entries_or_word(value: Any) -> Any:
    """Read "8000" as a number, a word as it is, and nothing as all tokens."""
    if value is None:
        return ALL_TOKENS
    if value in (ALL_TOKENS, AUTO_VOCABULARY):
        return value
    if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
        raise ConfigError(
            f"vocab_size={value!r}: give a number of entries from 1, {AUTO_VOCABULARY} or "
            f"{ALL_TOKENS}."
        )
    return int(value)


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
    "agreement with nobody": Rule(
        lambda config: not (config.more_teachers and config.learns_unlabelled),
        "several teachers agree on unlabelled texts. Give more_teachers, and unlabelled or "
        "unlabelled_texts; or leave it out.",
        frozenset({"unlabelled_agreement"}),
        beyond_default=True,
    ),
    "other tokens than the teacher's": Rule(
        lambda config: (
            config.changed_method().wants_teacher_tokens
            and (config.most_entries is not None or config.vocab_floor > 1)
        ),
        "the student of method {method!r} must read the teacher's tokens. Leave it out and prune "
        "the student's vocabulary afterwards (`bertender prune --vocab task`), or choose a method "
        "that compares whole texts, as pkd or hard, or pd with a student of its own.",
        frozenset({"vocab_floor", "vocab_size"}),
        beyond_default=True,
    ),
    "a choice among all layers": Rule(
        lambda config: bool(
            config.student and isinstance(config.teacher_layers, str) and not config.layers
        ),
        "teacher_layers={teacher_layers}: a student of another encoder has all of its layers where "
        "none are said. Give layers, or leave it out.",
    ),
    "floor of no vocabulary": Rule(
        lambda config: config.vocab_size == ALL_TOKENS,
        "the vocabulary stays whole. Give another vocab_size, or leave it out.",
        frozenset({"vocab_floor"}),
        against="vocab_size",
        beyond_default=True,
    ),
    "a control of itself": Rule(
        lambda config: not config.changed_method().learns_from_teacher,
        "method {method!r} with these settings learns from labels alone, so that the student is "
        "its own control. Leave it out, or choose a method that learns from the teacher.",
        frozenset({"control"}),
        beyond_default=True,
    ),
}
"""Conflicts of settings."""


class DistillConfig(StudentConfig, AugmentedConfig, FilteredConfig, JudgedConfig):
    """Settings of `distill`."""

    panel: ClassVar[str] = "Student"
    panels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "Training": ("teacher_cache_mb", "control"),
        "Texts without labels": ("unlabelled_agreement",),
        "Losses": ("more_teachers",),
    }
    main: ClassVar[tuple[str, ...]] = ("method", "layers", "student", "epochs", "learning_rate")
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    judging: ClassVar[frozenset[str]] = frozenset({"allow_constant", "control"})
    shown_defaults: ClassVar[Mapping[str, str]] = {
        **StudentConfig.shown_defaults,
        "max_length": "the teacher's",
    }

    student: str | None = Field(
        None,
        description="folder, packaged encoder or hub name that the student starts from, with its "
        "own vocabulary; the teacher by default",
    )
    vocab_size: Annotated[str | int, BeforeValidator(_entries_or_word)] = Field(
        AUTO_VOCABULARY,
        description="the student's vocabulary: auto keeps the tokens of the texts that it learns "
        "from, where nearly all words of the texts to choose by stay whole then; a number keeps "
        "so many entries at most, the most frequent; all cuts none. Single characters stay",
    )
    vocab_floor: int = Field(
        1, ge=1, description="where the vocabulary is cut, keep tokens that occur so often"
    )
    more_teachers: Annotated[tuple[Path, ...], BeforeValidator(parts_of)] = Field(
        (), description="more artifacts by commas, whose logits are averaged with the teacher's"
    )
    unlabelled_agreement: bool = Field(
        False,
        description="with more teachers: leave out unlabelled texts on which the teachers predict "
        "different labels",
    )
    teacher_cache_mb: int = Field(
        4096,
        ge=0,
        description="most MB of teacher outputs to cache on disk; where they are larger, the "
        "teacher runs in each step",
    )
    control: bool = Field(
        False,
        description="then train the same student on labels alone, for as many epochs and at equal "
        "computation, and report what distilling gave over it",
    )

    @property
    def most_entries(self) -> int | None:
        """Most entries of the student's vocabulary, where a number is set."""
        return self.vocab_size if isinstance(self.vocab_size, int) else None
