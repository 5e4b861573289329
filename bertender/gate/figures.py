"""A reference's and a candidate's logits side by side, and the figures of the parity gate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.gate.tolerances import Tolerance
from bertender.metrics.scores import Change, LabelSet, paired_change
from bertender.problems.problem import Problem
from bertender.problems.single_label_classification import SINGLE_LABEL

if TYPE_CHECKING:
    from bertender.gate.cases import Case, Question

# --- from bertender.measure.paired_logits
# A reference's and a candidate's logits of the same texts, for the parity gate.

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

NOBODY: IntArray = np.empty(0, dtype=np.int64)
ROUNDING = 1e-5
"""Of the largest logit: what float32 may add to each."""
STRONG = 0.25
"""The direction of logits that are all near 0 is noise: cosines count from this share of the
largest logit on."""


@dataclass(frozen=True)
class PairedLogits:
    """Finite logits side by side; each array has one row for a prediction of the candidate: of a
    text, or of a word.

    `scale` is the largest absolute logit of the reference, over all texts; `spread` the standard
    deviation over the task's texts of its logits, all labels together, without what changes no
    probability; `size` is the root mean square over labels of their averages, plus one spread: how
    far from a tie a text is that is one spread farther than the average.
    """

    texts: tuple[Question, ...]
    cases: tuple[Case, ...]
    text_ids: IntArray
    case_ids: IntArray
    expected: FloatArray
    actual: FloatArray
    scale: float
    spread: float
    size: float
    problems: tuple[str, ...]
    places: IntArray
    """(rows,): the place of a row in its text, such as the number of a word."""
    problem: Problem[Any] = SINGLE_LABEL

    def __len__(self) -> int:
        return len(self.text_ids)

    @cached_property
    def differences(self) -> FloatArray:
        """Absolute differences (rows, labels)."""
        return np.asarray(np.abs(self.actual - self.expected))

    @cached_property
    def cosines(self) -> FloatArray:
        """Cosine of each row with its reference (rows,); NaN where the reference is near 0."""
        norms = np.linalg.norm(self.expected, axis=1)
        lengths = norms * np.linalg.norm(self.actual, axis=1)
        products = (self.expected * self.actual).sum(axis=1)
        cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        strong = (norms > 0) & (norms >= STRONG * self.scale)
        return np.asarray(np.where(strong, cosines, np.nan))

    @cached_property
    def gaps(self) -> FloatArray:
        """How far the reference is from another prediction (rows,)."""
        return 2 * self.problem.margin(self.expected)

    @cached_property
    def agrees(self) -> npt.NDArray[np.bool_]:
        """Whether the predictions are equal (rows,)."""
        first, second = (self.problem.choose(each) for each in (self.expected, self.actual))
        return np.asarray((first == second).all(axis=tuple(range(1, first.ndim))))

    @cached_property
    def moved(self) -> FloatArray:
        """Differences (rows, labels) without what changes no probability, such as what is added to
        all logits of a text."""
        probable = self.problem.probable
        return np.asarray(probable(self.actual) - probable(self.expected))

    @cached_property
    def shifts(self) -> FloatArray:
        """The average of `moved` over the task's texts, in the case of a row (rows, labels).

        Rows of edge cases have that of all these texts: they are too few for one of their own.
        """
        wide, shifts = self.wide_cases(), np.zeros_like(self.moved)
        if wide:
            shifts[self.edge_rows] = self.moved[~self.edge_rows].mean(axis=0)
        for case in wide:
            shifts[case] = self.moved[case].mean(axis=0)
        return shifts

    @cached_property
    def relative_shifts(self) -> FloatArray:
        """Root mean squares over labels of `shifts`, as shares of the size (rows,)."""
        return _shares(self.shifts, self.size)

    @cached_property
    def relative_differences(self) -> FloatArray:
        """Differences that change probabilities, as shares of the reference's logits (rows,).

        They are root mean squares over labels, as shares of the spread. What moves all texts alike,
        though, brings each nearer to a tie or further from one, and leaves their order: where it is
        less so, that shift counts as a share of the size, and what is left of a row as a share of
        the spread, whichever is larger. Of balanced logits, size and spread are the same. Of a
        model that gives nearly all texts one label, the spread is little of the size, and a shift
        that turns none of them would be many spreads.
        """
        rests = _shares(self.moved - self.shifts, self.spread)
        apart = np.maximum(self.relative_shifts, rests)
        return np.asarray(np.minimum(apart, _shares(self.moved, self.spread)))

    def correlation(self, case: npt.NDArray[np.bool_]) -> float | None:
        """Return how the logits of both models go together over the texts of a case.

        Pearson's coefficient of all labels together, each without its average: a shift changes
        nothing. 0 for a candidate whose logits are the same for all texts, but for rounding of
        float32; None where the reference's are.
        """
        probable = self.problem.probable
        expected, actual = (
            each - each.mean(axis=0)
            for each in (probable(self.expected[case]), probable(self.actual[case]))
        )
        least = ROUNDING * self.scale
        if np.abs(expected).max() <= least:
            return None
        if np.abs(actual).max() <= least:
            return 0.0
        lengths = np.linalg.norm(expected) * np.linalg.norm(actual)
        return float((expected * actual).sum() / lengths)

    def decided(self, tolerance: Tolerance) -> npt.NDArray[np.bool_]:
        """Whether the reference's prediction is not a near-tie (rows,)."""
        if tolerance.tie_spreads is not None:
            # logits that each move by d can turn a prediction whose gap is within 2 d
            return np.asarray(self.gaps / 2 > tolerance.tie_spreads * self.spread)
        return np.asarray(self.gaps > (tolerance.tie_margin or 0.0) * self.scale)

    @cached_property
    def edge_rows(self) -> npt.NDArray[np.bool_]:
        """Which rows are of edge cases (rows,)."""
        return np.array([case.edge for case in self.cases], dtype=bool)[self.case_ids]

    def wide_cases(self) -> list[npt.NDArray[np.bool_]]:
        """Return the rows of each case that is not an edge case and has outputs."""
        return self._cases_of(edge=False)

    def edge_cases(self) -> list[npt.NDArray[np.bool_]]:
        """Return the rows of each edge case that has outputs."""
        return self._cases_of(edge=True)

    def predictions(self, logits: FloatArray, case: npt.NDArray[np.bool_]) -> list[Any]:
        """Return the predictions of each text in a case, by some logits (all rows, labels).

        The rows of a text lie next to each other, and in a case each text is there once.
        """
        starts = np.flatnonzero(np.diff(self.text_ids[case], prepend=-1))[1:]
        chosen = self.problem.choose(logits)
        parts = (np.split(each[case], starts) for each in (chosen, self.places))
        return [
            self.problem.decode(labels, places, self.texts[text].example)
            for text, labels, places in zip(self.texts_in(case), *parts, strict=True)
        ]

    def texts_in(self, case: npt.NDArray[np.bool_]) -> list[int]:
        """Return which texts are in a case, in the order of `predictions`."""
        text_ids = self.text_ids[case]
        return list(text_ids[np.flatnonzero(np.diff(text_ids, prepend=-1))].tolist())

    def _cases_of(self, edge: bool) -> list[npt.NDArray[np.bool_]]:
        chosen = (index for index, case in enumerate(self.cases) if case.edge is edge)
        masks = (self.case_ids == index for index in chosen)
        return [mask for mask in masks if mask.any()]

    def describe(self, row: int) -> str:
        """Return which text a row is, and where it stood."""
        case = self.cases[int(self.case_ids[row])].name
        return f"{self.texts[int(self.text_ids[row])].quote()} ({case})"


def no_logits(labels: int) -> PairedLogits:
    """Return the outputs of a candidate that could not be run."""
    nothing = np.empty((0, labels))
    return PairedLogits((), (), NOBODY, NOBODY, nothing, nothing, 0.0, 0.0, 0.0, (), NOBODY)


def _shares(moved: FloatArray, unit: float) -> FloatArray:
    """Return root mean squares over labels (rows,) as shares of a unit; of 0, as they are."""
    return np.asarray(np.sqrt((moved**2).mean(axis=1)) / (unit or 1.0))


# --- from bertender.measure.parity_checks
# Measurements of the parity gate on logits, and the checks that bound them: rows of CHECKS.

BoolArray = npt.NDArray[np.bool_]


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
