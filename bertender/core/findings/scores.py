"""The scores that an artifact was chosen by, and those on held-out texts."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from bertender.core.findings.part import Part

__all__ = ["ChoiceScores", "ChosenOn", "ConstantFindings", "ScoreFindings"]

ChosenOn = Literal["selection", "dev"]
"""Texts of the training file that are set apart, or the held-out ones."""


class ChoiceScores(Part):
    """Scores on the texts to choose by."""

    before: float = Field(description="of the model that the artifact was made from")
    after: float
    n: int = Field(description="how many texts these are")


class ConstantFindings(Part):
    """The one label that a model predicts everywhere, though the true labels are several."""

    label: str
    share: float = Field(description="of the true labels that it is")
    n: int = Field(description="true labels: one a text, or one a word where words have labels")

    @property
    def words(self) -> str:
        """The fault in words, after the model's name."""
        return f"predicts {self.label!r} everywhere; {self.share:.1%} of {self.n} labels are that"


class ScoreFindings(Part):
    """Scores on held-out texts, which are read once where others choose."""

    chosen_on: ChosenOn = Field(description="the texts to choose by")
    score: float = Field(description="held-out")
    score_before: float | None = Field(
        None, description="held-out, of the model that the artifact was made from"
    )
    choice: ChoiceScores | None = Field(None, description="by which a loss was judged")
    constant: ConstantFindings | None = Field(
        None, description="where the model predicts one label for all held-out texts"
    )
