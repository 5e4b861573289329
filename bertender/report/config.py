"""Settings of `report` and `analyse`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from bertender.core.config import Config, parts_of

AnalysisName = Literal["importance", "masking", "attention", "similarity"]
ANALYSES: tuple[AnalysisName, ...] = ("importance", "masking", "attention", "similarity")


class LimitsConfig(Config):
    """Limits of the model to deploy."""

    panel: ClassVar[str] = "Limits"
    main: ClassVar[tuple[str, ...]] = ("max_ms", "max_mb", "min_score")

    max_ms: float | None = Field(
        None, gt=0, description="most milliseconds for one text of natural length, the median"
    )
    max_mb: float | None = Field(None, gt=0, description="most megabytes on disk")
    min_score: float | None = Field(None, gt=0, le=1, description="least score")

    def flags(self) -> str:
        """Return the limits that are set, as command-line flags."""
        set_ = {name: value for name, value in self if value is not None}
        return " ".join(f"--{name.replace('_', '-')} {value:g}" for name, value in set_.items())


class AnalyseConfig(Config):
    """Settings of `analyse`."""

    panel: ClassVar[str] = "Analysis"
    main: ClassVar[tuple[str, ...]] = ("only", "texts")

    only: Annotated[tuple[AnalysisName, ...], BeforeValidator(parts_of)] = Field(
        ANALYSES,
        min_length=1,
        description="analyses by commas: importance of heads (gradient), masking (the score "
        "without each head, and with each head alone in its layer), attention (patterns, and its "
        "share on special tokens and punctuation), similarity (SelfSim and IntraSim of each layer)",
    )
    texts: int = Field(
        200,
        ge=1,
        description="held-out texts to read, at most; masking reads them twice for each head",
    )
