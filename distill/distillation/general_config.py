"""Settings of `distill-general`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import Field, model_validator

from bertender.core.errors import ConfigError
from distill.corpora.corpus import CORPUS_HELP, TEXT_COLUMN_HELP
from distill.distillation.config import StudentConfig, methods_own
from distill.methods import GENERAL_METHODS
from distill.methods.method import Method

__all__ = ["MASK_PROBABILITY", "VOCABULARY_SIZE", "GeneralConfig"]

MASK_PROBABILITY = 0.15
VOCABULARY_SIZE = 4928
NO_USE_FOR: Mapping[str, str] = {
    "mask_probability": "masks no words",
    "vocabulary_size": "leaves a student its teacher's vocabulary",
}


class GeneralConfig(StudentConfig):
    """Settings of `distill-general`."""

    rows: ClassVar[Mapping[str, Method]] = GENERAL_METHODS
    shown_defaults: ClassVar[Mapping[str, str]] = methods_own(GENERAL_METHODS)

    method: str = Field("tinybert", description=f"{', '.join(GENERAL_METHODS)}")
    teacher: str = Field(
        "all-MiniLM-L6-v2",
        description="folder, artifact of `pretrain`, packaged encoder, or hub name to learn from",
    )
    corpus: str = Field("docs", description=CORPUS_HELP)
    text_column: str = Field("text", description=TEXT_COLUMN_HELP)
    mask_probability: float | None = Field(
        None, gt=0, lt=1, description="share of tokens to predict; 0.15 where a method masks some"
    )
    vocabulary_size: int | None = Field(
        None,
        ge=100,
        description="most entries of the student's vocabulary, where it has one of its own; 4928 "
        "by default",
    )

    @model_validator(mode="after")
    def _are_read(self) -> Self:
        """Refuse settings of words that the method has no use for."""
        method = GENERAL_METHODS[self.method]
        uses = {
            "mask_probability": method.predicts_words,
            "vocabulary_size": method.student.own_vocabulary,
        }
        for name, used in uses.items():
            if getattr(self, name) is not None and not used:
                raise ConfigError(
                    f"{name}={getattr(self, name)}: method {self.method!r} "
                    f"{NO_USE_FOR[name]}. Leave it out, or choose another method."
                )
        return self
