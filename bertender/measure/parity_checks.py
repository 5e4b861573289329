"""Measurements of the parity gate on logits, and the checks that bound them: rows of CHECKS."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.measure.paired_logits import PairedLogits
from bertender.measure.tolerances import Tolerance
from bertender.metrics.changes import paired_change
from bertender.metrics.records import Change, LabelSet

__all__ = ["CHECKS", "Check", "Figures", "Truth", "Unit", "largest", "mean", "measure_figures"]

BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


FISHER_ROWS = 3
"""Rows that the interval of a correlation does without."""


class Figures(Record):
    """The measured differences; None where nothing finite could be compared."""

    max_abs_difference: float | None = Field(None, description="of logits, not relative")
    mean_abs_difference: float | None = Field(None, description="in the worst arrangement")
    min_cosine: float | None = Field(None, description="over rows with logits not all near 0")
    median_difference: float | None = Field(
        None,
        description="of texts in the worst arrangement, in spreads of the reference's logits over "
        "texts; a shift of all texts alike, where that is less, in sizes of these logits",
    )
    median_difference_low: float | None = Field(
        None, description="lower end of the median's 95 % interval, in the worst arrangement"
    )
    p95_difference: float | None = Field(None, description="the 95th percentile, likewise")
    p95_difference_low: float | None = Field(
        None, description="lower end of the 95th percentile's 95 % interval, likewise"
    )
    edge_difference: float | None = Field(
        None, description="median of the worst arrangement of edge texts, likewise"
    )
    common_shift: float | None = Field(
        None,
        description="how far the logits of all texts move on average, in the worst arrangement, in "
        "sizes of the reference's logits; None in older results",
    )
    correlation: float | None = Field(
        None,
        description="of the logits over texts, in the worst arrangement; None in older results, "
        "and where the reference's are the same for all texts",
    )
    correlation_high: float | None = Field(
        None, description="the upper end of its 95 % interval, in the worst arrangement"
    )
    agreement: float | None = Field(None, description="share of equal predictions, of all rows")
    decided_agreement: float | None = Field(
        None, description="without near-ties, in the worst arrangement"
    )
    decided_agreement_high: float | None = Field(
        None, description="the upper end of its 95 % interval, in the worst arrangement"
    )
    score_change: float | None = Field(
        None, description="in points, in the worst arrangement; None of texts without labels"
    )
    score_change_high: float | None = Field(
        None, description="the upper end of its 95 % interval, in the worst arrangement"
    )
    near_ties: int | None = Field(
        None, description="predictions too near a tie to judge, of all rows"
    )
    near_ties_turned: int | None = Field(None, description="those that the candidate turned")


@dataclass(frozen=True)
class Unit:
    """The unit of a figure and its bound."""

    size: Callable[[PairedLogits], float]
    name: str


LARGEST = Unit(lambda paired: paired.scale, "the largest reference logit")
SPREAD = Unit(lambda paired: paired.spread, "the spread of the reference's logits over texts")


@dataclass(frozen=True)
class Check:
    """A row of CHECKS: a bound of the tolerance on one figure, and how bad each row is."""

    figure: str
    bound: str
    badness: Callable[[PairedLogits, Tolerance], FloatArray]
    at_most: bool = False
    unit: Unit | None = None
    """The figure and the bound are shares of it; for the message."""
    scaled: bool = False
    """The figure is in logits, not in shares of the unit."""

    def failure(self, figures: Figures, paired: PairedLogits, tolerance: Tolerance) -> str | None:
        """Return measured and allowed value and the worst text; None when the check passes."""
        value, share = getattr(figures, self.figure), getattr(tolerance, self.bound)
        if value is None or share is None:
            return None
        size = self.unit.size(paired) if self.unit else 1.0
        allowed = share * size if self.scaled else share
        if value <= allowed if self.at_most else value >= allowed:
            return None
        limit = f"at {'most' if self.at_most else 'least'} {allowed:.4g}"
        if self.unit:
            limit += f" ({share:g} x {self.unit.name}, {size:.4g})"
        worst = paired.describe(int(self.badness(paired, tolerance).argmax()))
        return f"{self.figure} is {value:.4g}, allowed {limit}; worst: {worst}"


def _relative(paired: PairedLogits, tolerance: Tolerance) -> FloatArray:
    return paired.relative_differences * ~paired.edge_rows


CHECKS = (
    Check(
        "max_abs_difference",
        "max_abs",
        lambda paired, _: paired.differences.max(axis=1),
        at_most=True,
        unit=LARGEST,
        scaled=True,
    ),
    Check(
        "mean_abs_difference",
        "mean_abs",
        lambda paired, _: paired.differences.mean(axis=1),
        at_most=True,
        unit=LARGEST,
        scaled=True,
    ),
    Check("min_cosine", "min_cosine", lambda paired, _: -np.nan_to_num(paired.cosines, nan=1.0)),
    Check("median_difference_low", "max_median", _relative, at_most=True, unit=SPREAD),
    Check("p95_difference_low", "max_p95", _relative, at_most=True, unit=SPREAD),
    Check(
        "edge_difference",
        "max_edge",
        lambda paired, _: paired.relative_differences * paired.edge_rows,
        at_most=True,
        unit=SPREAD,
    ),
    Check("correlation_high", "min_correlation", _relative),
    Check(
        "decided_agreement_high",
        "min_agreement",
        lambda paired, tolerance: paired.gaps * (paired.decided(tolerance) & ~paired.agrees),
    ),
    Check(
        "score_change_high",
        "min_score_change",
        lambda paired, _: paired.gaps * ~paired.agrees,
    ),
)


@dataclass(frozen=True)
class Truth:
    """The labels of the task's texts, and the metric that scores predictions by them."""

    label_ids: Sequence[Any] | IntArray
    """Of the texts, in the order of the examples."""
    metric: str
    labels: tuple[str, ...] = ()
    """The names, for metrics that read names."""


def measure_figures(
    paired: PairedLogits, tolerance: Tolerance, truth: Truth | None = None
) -> Figures:
    """Return the figures of some logits; those of the score need the truth.

    Means, percentiles, decided agreement and score are those of the worst arrangement: damage that
    only batches show would be halved by the texts that stood alone.
    """
    strong = paired.cosines[~np.isnan(paired.cosines)]
    relative, decided = paired.relative_differences, paired.decided(tolerance)
    cases, edges = paired.wide_cases(), paired.edge_cases()
    agreements = [paired.agrees[decided & case] for case in cases if (decided & case).any()]
    changes = [_score_change(paired, case, truth) for case in cases] if truth else []
    return Figures(
        max_abs_difference=largest(paired.differences),
        mean_abs_difference=largest(np.array([paired.differences[case].mean() for case in cases])),
        min_cosine=float(strong.min()) if len(strong) else None,
        median_difference=largest(np.array([np.median(relative[case]) for case in cases])),
        median_difference_low=max((_low(relative[case], 0.5) for case in cases), default=None),
        p95_difference=largest(np.array([np.quantile(relative[case], 0.95) for case in cases])),
        p95_difference_low=max((_low(relative[case], 0.95) for case in cases), default=None),
        edge_difference=largest(np.array([np.median(relative[case]) for case in edges])),
        common_shift=largest(paired.relative_shifts),
        **_correlations(paired, cases),
        agreement=mean(paired.agrees) if len(paired) else None,
        decided_agreement=min(map(mean, agreements), default=None),
        decided_agreement_high=min(map(_high_share, agreements), default=None),
        score_change=min((change.value for change in changes), default=None),
        score_change_high=min((change.high for change in changes), default=None),
        near_ties=int((~decided).sum()),
        near_ties_turned=int((~decided & ~paired.agrees).sum()),
    )


def _score_change(paired: PairedLogits, case: BoolArray, truth: Truth) -> Change:
    """Return what the candidate's predictions gain in one arrangement of the task's texts."""
    return paired_change(
        truth.metric,
        [truth.label_ids[text] for text in paired.texts_in(case)],
        paired.predictions(paired.expected, case),
        paired.predictions(paired.actual, case),
        LabelSet(paired.expected.shape[1], truth.labels),
    )


def _high_share(truths: BoolArray) -> float:
    """Return the upper end of the 95 % interval (Clopper and Pearson's) of a share."""
    from scipy.stats import binomtest

    interval = binomtest(int(truths.sum()), len(truths)).proportion_ci(0.95, method="exact")
    return float(interval.high)


def _correlations(paired: PairedLogits, cases: Sequence[BoolArray]) -> dict[str, float | None]:
    """Return the figures of the correlation; None where the reference has no order."""
    values = [
        (value, _high_correlation(value, int(case.sum())))
        for case in cases
        if (value := paired.correlation(case)) is not None
    ]
    return {
        "correlation": min((value for value, _ in values), default=None),
        "correlation_high": min((high for _, high in values), default=None),
    }


def _high_correlation(value: float, rows: int) -> float:
    """Return the upper end of the 95 % interval (Fisher's) of a correlation; of too few rows 1."""
    if abs(value) >= 1:  # but for rounding
        return value
    from scipy.stats import norm

    left = rows - FISHER_ROWS
    half = norm.ppf(0.975) / math.sqrt(left) if left > 0 else math.inf
    return math.tanh(math.atanh(value) + half)


def _low(values: FloatArray, quantile: float) -> float:
    """Return the lower end of the 95 % interval of a quantile, by order statistics.

    Of too few values for an interval it is the least of them. Words of a text count as independent.
    """
    from scipy.stats import quantile_test

    low = quantile_test(values, p=quantile).confidence_interval(0.95).low
    return float(values.min() if np.isnan(low) else low)


def largest(values: FloatArray) -> float | None:
    """Return the largest value, or None of none."""
    return float(values.max()) if values.size else None


def mean(values: FloatArray | BoolArray) -> float:
    """Return the mean; of truths their share."""
    return float(values.mean())
