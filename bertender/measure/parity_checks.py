"""What the parity gate measures on answers, and the checks that bound it: the rows of CHECKS."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.measure.parity_answers import Answers
from bertender.measure.tolerances import Tolerance

__all__ = ["CHECKS", "Check", "Figures", "largest", "mean", "measure_figures"]

FloatArray = npt.NDArray[np.float64]


class Figures(Record):
    """The measured differences; None where nothing finite could be compared."""

    max_abs_difference: float | None = Field(None, description="of logits, not relative")
    mean_abs_difference: float | None = Field(None, description="in the worst arrangement")
    min_cosine: float | None = Field(None, description="over rows with logits not all near 0")
    agreement: float | None = Field(None, description="share of equal predictions, of all rows")
    decided_agreement: float | None = Field(
        None, description="without near-ties, in the worst case"
    )


@dataclass(frozen=True)
class Check:
    """A row of CHECKS: a bound of the tolerance on one figure, and how bad each answer is."""

    figure: str
    bound: str
    badness: Callable[[Answers, Tolerance], FloatArray]
    relative: bool = False
    at_most: bool = False

    def failure(self, figures: Figures, answers: Answers, tolerance: Tolerance) -> str | None:
        """Return measured and allowed value and the worst answer; None when the check passes."""
        value = getattr(figures, self.figure)
        share = getattr(tolerance, self.bound)
        allowed = share * answers.scale if self.relative else share
        if value is None or (value <= allowed if self.at_most else value >= allowed):
            return None
        limit = f"at {'most' if self.at_most else 'least'} {allowed:.4g}"
        if self.relative:
            limit += f" ({share:g} x the largest reference logit, {answers.scale:.4g})"
        worst = answers.describe(int(self.badness(answers, tolerance).argmax()))
        return f"{self.figure} is {value:.4g}, allowed {limit}; worst: {worst}"


CHECKS = (
    Check(
        "max_abs_difference",
        "max_abs",
        lambda answers, _: answers.differences.max(axis=1),
        relative=True,
        at_most=True,
    ),
    Check(
        "mean_abs_difference",
        "mean_abs",
        lambda answers, _: answers.differences.mean(axis=1),
        relative=True,
        at_most=True,
    ),
    Check("min_cosine", "min_cosine", lambda answers, _: -np.nan_to_num(answers.cosines, nan=1.0)),
    Check(
        "decided_agreement",
        "min_agreement",
        lambda answers, tolerance: (
            answers.gaps * (answers.decided(tolerance.tie_margin) & ~answers.agrees)
        ),
    ),
)


def measure_figures(answers: Answers, tolerance: Tolerance) -> Figures:
    """Return the figures of some answers.

    Mean and decided agreement are those of the worst arrangement: damage that only batches show
    would be halved by the answers of texts that stood alone.
    """
    strong = answers.cosines[~np.isnan(answers.cosines)]
    decided = answers.decided(tolerance.tie_margin)
    cases = answers.wide_cases()
    shares = [mean(answers.agrees[decided & case]) for case in cases]
    return Figures(
        max_abs_difference=largest(answers.differences),
        mean_abs_difference=largest(np.array([answers.differences[case].mean() for case in cases])),
        min_cosine=float(strong.min()) if len(strong) else None,
        agreement=mean(answers.agrees),
        decided_agreement=min((share for share in shares if share is not None), default=None),
    )


def largest(values: FloatArray) -> float | None:
    """Return the largest value, or None of none."""
    return float(values.max()) if values.size else None


def mean(values: FloatArray | npt.NDArray[np.bool_]) -> float | None:
    """Return the mean (of truths: their share), or None of none."""
    return float(values.mean()) if values.size else None
