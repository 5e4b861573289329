"""The control of a distilled student: the same student, trained on the labels alone."""

from __future__ import annotations

from pydantic import Field

from bertender.core.findings.part import Part
from bertender.core.findings.scores import ConstantFindings

__all__ = ["ControlFindings", "ControlRun", "Gain"]


class Gain(Part):
    """Student minus control on the same held-out texts, in points, with its 95 % interval."""

    value: float
    low: float
    high: float


class ControlRun(Part):
    """A control that was trained."""

    epochs: int
    score: float = Field(description="after its last epoch, on the texts to choose by")


class ControlFindings(Part):
    """The better control by the texts to choose by, and the gain of distilling over it."""

    epochs: int = Field(description="of the better one")
    score: float = Field(description="of the better one, held-out")
    gain: Gain = Field(description="of the student over it")
    n: int = Field(description="held-out texts")
    choice: float | None = Field(
        None,
        description="score of the student on the texts to choose by; of earlier cards not recorded",
    )
    teacher_layers: str | None = Field(
        None,
        description="that it starts from, as the setting has them; of earlier cards, and of "
        "students that start from all layers or none, not recorded",
    )
    equal_epochs: int = Field(
        description="epochs on labels alone that cost as much as the distillation; where they are "
        "more than the most that are trained, no control has them"
    )
    runs: tuple[ControlRun, ...] = Field(min_length=1, description="all controls, shortest first")
    constant: ConstantFindings | None = Field(
        None, description="where the better one predicts one label for all held-out texts"
    )

    @property
    def control_choice(self) -> float:
        """Score of the better control on the texts to choose by."""
        return next(run.score for run in self.runs if run.epochs == self.epochs)
