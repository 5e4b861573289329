"""Settings of `distill-general`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field

from bertender.core.config import Rule
from distill.distillation.config import StudentConfig, methods_own
from distill.methods import GENERAL_METHODS
from distill.methods.method import Method
from distill.pretraining.config import CORPUS_HELP, TEXT_COLUMN_HELP

MASK_PROBABILITY = 0.15
VOCABULARY_SIZE = 4928

RULES: Mapping[str, Rule[GeneralConfig]] = {
    "masks of no words": Rule(
        lambda config: not config.row.predicts_words,
        "method {method!r} masks no words. Leave it out, or choose another method.",
        frozenset({"mask_probability"}),
        beyond_default=True,
    ),
    "size of a vocabulary of the teacher's": Rule(
        lambda config: not config.row.student.own_vocabulary,
        "method {method!r} leaves a student its teacher's vocabulary. Leave it out, or choose "
        "another method.",
        frozenset({"vocabulary_size"}),
        beyond_default=True,
    ),
}
"""Settings of words that the method has no use for."""


class GeneralConfig(StudentConfig):
    """Settings of `distill-general`."""

    panel: ClassVar[str] = "Corpus"
    main: ClassVar[tuple[str, ...]] = ("teacher", "corpus", "method", "layers", "epochs")
    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES
    rows: ClassVar[Mapping[str, Method]] = GENERAL_METHODS
    shown_defaults: ClassVar[Mapping[str, str]] = methods_own(GENERAL_METHODS)

    method: str = Field("tinybert", description=f"{', '.join(GENERAL_METHODS)}")
    teacher: str = Field(
        "all-MiniLM-L6-v2",
        description="folder, artifact of `pretrain`, packaged encoder, or hub name to learn from",
    )
    corpus: str = Field("docs", description=CORPUS_HELP)
    text_column: str = Field("text", description=TEXT_COLUMN_HELP)
    max_length: int = Field(128, ge=8, description="tokens of a row of the corpus, at most")
    mask_probability: float | None = Field(
        None, gt=0, lt=1, description="share of tokens to predict; 0.15 where a method masks some"
    )
    vocabulary_size: int | None = Field(
        None,
        ge=100,
        description="most entries of the student's vocabulary, where it has one of its own; 4928 "
        "by default",
    )
