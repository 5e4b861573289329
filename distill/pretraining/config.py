"""Settings of `pretrain`, and the phases that its lengths make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from bertender.core.config import Rule
from bertender.training.config import TrainingConfig
from distill.corpora.corpus import CORPUS_HELP, TEXT_COLUMN_HELP
from distill.objectives import OBJECTIVES
from distill.vocabularies import TOKENIZERS

__all__ = ["RULES", "LengthPhase", "PretrainConfig"]

SHORT_SHARE = 0.9


@dataclass(frozen=True)
class LengthPhase:
    """A part of the training on rows of one length."""

    name: str
    max_length: int
    share: float
    """Of the steps of the whole run."""


def _uneven_heads(config: PretrainConfig) -> str:
    fitting = [heads for heads in range(1, 33) if config.hidden_size % heads == 0]
    return (
        f"heads={config.heads} do not divide hidden_size={config.hidden_size}. "
        f"Heads that do: {', '.join(map(str, fitting))}."
    )


def _small_vocabulary(config: PretrainConfig) -> str:
    return (
        f"vocabulary_size={config.vocabulary_size} is too small for tokenizer "
        f"{config.tokenizer!r}, which needs {TOKENIZERS[config.tokenizer].smallest} at least. Give "
        "more, or choose another tokenizer."
    )


RULES: Mapping[str, Rule[PretrainConfig]] = {
    "uneven heads": Rule(lambda config: config.hidden_size % config.heads > 0, _uneven_heads),
    "small vocabulary": Rule(
        lambda config: config.vocabulary_size < TOKENIZERS[config.tokenizer].smallest,
        _small_vocabulary,
    ),
    "share of no steps": Rule(
        lambda config: config.short_length is None,
        "without short_length no step is shorter. Give short_length too, or leave it out.",
        frozenset({"short_share"}),
        beyond_default=True,
    ),
    "long short rows": Rule(
        lambda config: (config.short_length or 0) >= config.max_length,
        "short_length={short_length} must be below max_length={max_length}. Give a smaller one, or "
        "a larger max_length.",
    ),
}
"""Conflicts of settings."""


class PretrainConfig(TrainingConfig):
    """Settings of `pretrain`."""

    rules: ClassVar[Mapping[str, Rule[Any]]] = RULES

    corpus: str = Field("docs", description=CORPUS_HELP)
    text_column: str = Field("text", description=TEXT_COLUMN_HELP)
    objective: Annotated[str, OBJECTIVES.validator()] = Field(
        "mlm", description=f"objective: {', '.join(OBJECTIVES)} (see docs/pretraining.md)"
    )
    tokenizer: Annotated[str, TOKENIZERS.validator()] = Field(
        "wordpiece", description=f"kind of tokenizer: {', '.join(TOKENIZERS)}"
    )
    vocabulary_size: int = Field(8000, ge=100, description="most entries of the vocabulary")
    layers: int = Field(4, ge=1, description="the encoder's layers")
    hidden_size: int = Field(256, ge=8, description="width of the encoder")
    heads: int = Field(4, ge=1, description="attention heads; must divide hidden_size")
    stack_from: Path | None = Field(
        None, description="artifact of a shallower `pretrain` whose layers are repeated to start"
    )
    mask_probability: float = Field(0.15, gt=0, lt=1, description="share of tokens to predict")
    max_length: int = Field(128, ge=8, description="tokens of a row of the corpus, at most")
    short_length: int | None = Field(
        None, ge=8, description="tokens of a row at first; max_length for the last of the steps"
    )
    short_share: float | None = Field(
        None, gt=0, lt=1, description="share of the steps at short_length; 0.9 by default"
    )
    learning_rate: float = Field(5e-4, gt=0, description="peak learning rate of AdamW")

    def phases(self) -> tuple[LengthPhase, ...]:
        """Return the phases of the training: one, or one of short rows and one of long ones."""
        if self.short_length is None:
            return (LengthPhase("whole", self.max_length, 1.0),)
        share = self.short_share or SHORT_SHARE
        return (
            LengthPhase("short", self.short_length, share),
            LengthPhase("long", self.max_length, 1 - share),
        )
