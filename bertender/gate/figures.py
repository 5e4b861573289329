"""A reference's and a candidate's logits of the same texts side by side, and their differences.

The reference reads each text alone, unpadded; its outputs are the truth. The candidate reads the
same texts in every case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.config import Record
from bertender.core.errors import ModelError
from bertender.core.progress import Bar, progress_bar
from bertender.gate.cases import BATCH_SIZES, Case, Question, arrange, ask, questions_of
from bertender.metrics import paired_change
from bertender.metrics.metric import OF_HEAD, Change, LabelSet, labels_of_head, of_one_head
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs, Problem
from bertender.problems.several_heads import SeveralHeads
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Example

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

Reply = tuple[int, int, npt.NDArray[np.float32]]
"""(case, text, the candidate's logits)"""

NOBODY: IntArray = np.empty(0, dtype=np.int64)
ROUNDING = 1e-5
"""Share of the largest logit that float32 rounding may add to each logit."""
STRONG = 0.25
"""Logits near 0 have a noisy direction: cosines count only above this share of the largest
logit."""
FISHER_ROWS = 3
"""Rows subtracted from the sample size for the interval of a correlation."""


@dataclass(frozen=True)
class PairedLogits:
    """Finite logits side by side; each array has one row per prediction of the candidate, for a
    text or a word.

    `scale` is that of the reference's logits over all texts (`Problem.scale`), `size` and `spread`
    are those over the task's texts (`Problem.size_and_spread`).
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
    """(rows,): position of a row in its text, such as the number of a word."""
    replies: IntArray
    """(rows,): number of the row's reply, a text in a case."""
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
        """Margin of the reference's decisions (rows, decisions)."""
        return np.asarray(2.0 * self._decided(self.problem.margins, self.expected))

    @cached_property
    def agrees(self) -> BoolArray:
        """Whether both decisions are equal (rows, decisions)."""
        decisions = self.problem.decisions
        first, second = (self._decided(decisions, each) for each in (self.expected, self.actual))
        return np.asarray(first == second)

    @cached_property
    def decides(self) -> BoolArray:
        """Which rows have decisions (rows,): if the rows of a reply decide together, the first."""
        if self.problem.decides_within != "example":
            return np.ones(len(self), dtype=bool)
        return np.diff(self.replies, prepend=-1) > 0

    def _decided(
        self, decide: Callable[[Outputs], npt.NDArray[Any]], logits: FloatArray
    ) -> npt.NDArray[Any]:
        """Return the decisions of some logits (rows, decisions); 0 where a row has no decisions."""
        within = self.problem.decides_within
        if within == "row" or not len(self):
            return decide(Outputs(logits, self.places))
        together = self.replies if within == "example" else self.case_ids
        starts = np.flatnonzero(np.diff(together, prepend=-1))
        groups = zip(np.split(logits, starts[1:]), np.split(self.places, starts[1:]), strict=True)
        decided = np.concatenate([decide(Outputs(*own)) for own in groups])
        whole = np.zeros((len(self), *decided.shape[1:]), dtype=decided.dtype)
        whole[self.decides] = decided
        return whole

    @cached_property
    def moved(self) -> FloatArray:
        """Differences (rows, labels) without parts that change no probability, such as a constant
        added to all logits of a text."""
        probable = self.problem.probable
        return np.asarray(probable(self.actual) - probable(self.expected))

    @cached_property
    def shifts(self) -> FloatArray:
        """Mean of `moved` over the task's texts in the case of a row (rows, labels).

        Rows of edge cases have the mean over all of these texts: they are too few for their own.
        """
        shifts = np.zeros_like(self.moved)
        if wide := self.rows_of_cases(edge=False):
            shifts[self.edge_rows] = self.moved[~self.edge_rows].mean(axis=0)
        for case in wide:
            shifts[case] = self.moved[case].mean(axis=0)
        return shifts

    @cached_property
    def relative_shifts(self) -> FloatArray:
        """Root mean squares over labels of `shifts`, relative to the size (rows,)."""
        return _shares(self.shifts, self.size)

    @cached_property
    def relative_differences(self) -> FloatArray:
        """Differences that change probabilities, relative to the reference's logits (rows,).

        They are root mean squares over labels, relative to the spread. But a common shift of all
        texts, which brings each nearer to a tie or further from it, keeps their order. So if this
        gives less, the shift counts relative to the size and the remainder of a row relative to the
        spread, whichever is larger. For balanced logits, size and spread are equal. For a model
        that gives nearly all texts one label, the spread is a small part of the size, and a shift
        that changes no label would be many spreads.
        """
        unshifted = _shares(self.moved - self.shifts, self.spread)
        apart = np.maximum(self.relative_shifts, unshifted)
        return np.asarray(np.minimum(apart, _shares(self.moved, self.spread)))

    def correlation(self, case: BoolArray) -> float | None:
        """Return the correlation of both models' logits over the texts of a case.

        This is Pearson's coefficient over all labels together, each without its mean, so that
        shifts change nothing. 0 for a candidate with the same logits for all texts, except for
        float32 rounding; None if the reference has the same logits for all.
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

    @cached_property
    def edge_rows(self) -> BoolArray:
        """Whether each row belongs to an edge case (rows,)."""
        return np.array([case.edge for case in self.cases], dtype=bool)[self.case_ids]

    def rows_of_cases(self, *, edge: bool) -> list[BoolArray]:
        """Return the rows of each case with outputs: of the edge cases, or of the others."""
        chosen = (index for index, case in enumerate(self.cases) if case.edge is edge)
        masks = (self.case_ids == index for index in chosen)
        return [mask for mask in masks if mask.any()]

    def by_head(self) -> Mapping[str, PairedLogits]:
        """Return the outputs of each of several heads, with its own sizes; for other models, all
        outputs without a name."""
        if not isinstance(self.problem, SeveralHeads):
            return {"": self}
        return {name: self._of_head(name, self.problem) for name in self.problem.heads}

    def _of_head(self, name: str, problem: SeveralHeads) -> PairedLogits:
        kind, columns = problem.heads[name], problem.slices[name]
        rows = problem.rows_of_head(name, self.places)
        expected = self.expected[rows][:, columns]
        # each text of the task once, unless the candidate failed at it
        case = next((own[rows] for own in self.rows_of_cases(edge=False)), None)
        own = expected if case is None else expected[case]
        size, spread = kind.size_and_spread(own) if len(own) else (0.0, 0.0)
        return replace(
            self,
            text_ids=self.text_ids[rows],
            case_ids=self.case_ids[rows],
            expected=expected,
            actual=self.actual[rows][:, columns],
            scale=kind.scale(expected),
            spread=spread,
            size=size,
            places=self.places[rows],
            replies=self.replies[rows],
            problem=kind,
        )

    def score_change(self, case: BoolArray, truth: Truth) -> Change:
        """Return the candidate's gain in score in one arrangement of the task's texts."""
        # the rows of a text are adjacent, and a case has each text once
        starts = np.flatnonzero(np.diff(self.text_ids[case], prepend=-1))
        texts = self.text_ids[case][starts].tolist()
        places = np.split(self.places[case], starts[1:])

        def predictions(logits: FloatArray) -> Any:
            of_texts = np.split(logits[case].astype(np.float32), starts[1:])
            decoded = [
                self.problem.decode(Outputs(own, place), self.texts[text].example)
                for text, own, place in zip(texts, of_texts, places, strict=True)
            ]
            return self.problem.gather(decoded)

        return paired_change(
            truth.metric,
            [truth.label_ids[text] for text in texts],
            predictions(self.expected),
            predictions(self.actual),
            LabelSet(self.expected.shape[1], truth.labels),
        )

    def describe(self, row: int) -> str:
        """Return the text of a row, and its case."""
        case = self.cases[int(self.case_ids[row])].name
        return f"{self.texts[int(self.text_ids[row])].quote()} ({case})"


def no_logits(labels: int) -> PairedLogits:
    """Return the outputs of a candidate that could not be run."""
    nothing = np.empty((0, labels))
    return PairedLogits((), (), NOBODY, NOBODY, nothing, nothing, 0.0, 0.0, 0.0, (), NOBODY, NOBODY)


def _shares(moved: FloatArray, unit: float) -> FloatArray:
    """Return root mean squares over labels (rows,) as shares of a unit, or unchanged if the unit is
    0."""
    return np.asarray(np.sqrt((moved**2).mean(axis=1)) / (unit or 1.0))


def pair_logits(
    reference: Classifier,
    candidate: Classifier,
    examples: Sequence[Example],
    *,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    seed: int = 0,
) -> PairedLogits:
    """Run both classifiers; the reference on single texts, the candidate on every case.

    Faults that make rows incomparable (an error of the candidate, a wrong shape, NaN) are described
    in `problems`, and the rows are left out.
    """
    texts = questions_of(reference, candidate, examples)
    cut = sum(text.tokens is not None for text in texts)
    edges = (len(texts) - len(examples) - cut) // 2
    cases = arrange(len(examples), edges, cut, batch_sizes, seed)
    times = len(texts) + sum(len(batch) for case in cases for batch in case.batches)
    with progress_bar(f"parity {candidate.name}", times) as bar:
        known: list[Outputs] = []
        for text in texts:
            known += ask(reference, [text])
            bar.advance()
        replies, problems = _replies(candidate, texts, cases, known, bar)

    width = known[0].logits.shape[1] if known else len(reference.labels)

    def stacked(parts: Sequence[npt.NDArray[Any]]) -> FloatArray:
        """Concatenate logits to (rows, labels); no rows if there are no parts."""
        nothing = np.empty((0, width))
        return np.asarray(np.concatenate([nothing, *parts]), dtype=np.float64)

    counts = [len(logits) for _, _, logits in replies]
    case_ids, text_ids = (
        np.repeat(np.array([reply[place] for reply in replies], dtype=np.int64), counts)
        for place in (0, 1)
    )
    own = [known[text] for _, text, _ in replies]
    expected = stacked([each.logits for each in own])
    actual = stacked([logits for _, _, logits in replies])
    finite = np.isfinite(expected).all(axis=1) & np.isfinite(actual).all(axis=1)
    right = stacked([each.logits for each in known])
    owners = [text for text, each in zip(texts, known, strict=True) for _ in each.places]
    own_texts = stacked([each.logits for each in known[: len(examples)]])
    own_texts = own_texts[np.isfinite(own_texts).all(axis=1)]
    output = reference.problem.output
    size, spread = reference.problem.size_and_spread(own_texts) if len(own_texts) else (0.0, 0.0)
    return PairedLogits(
        texts=texts,
        cases=cases,
        text_ids=text_ids[finite],
        case_ids=case_ids[finite],
        expected=expected[finite],
        actual=actual[finite],
        scale=reference.problem.scale(right[np.isfinite(right)]),
        spread=spread,
        size=size,
        problems=(
            *problems,
            *_non_finite(f"reference {output}s", right, owners),
            *_non_finite(f"candidate {output}s", actual, [texts[text] for text in text_ids]),
        ),
        places=np.concatenate([NOBODY, *(each.places for each in own)])[finite],
        replies=np.repeat(np.arange(len(replies)), counts)[finite],
        problem=reference.problem,
    )


def _replies(
    candidate: Classifier,
    texts: Sequence[Question],
    cases: Sequence[Case],
    known: Sequence[Outputs],
    bar: Bar,
) -> tuple[list[Reply], list[str]]:
    """Run the candidate on every case, up to a case's first error; also return the errors as
    text."""
    replies: list[Reply] = []
    problems: list[str] = []
    for number, case in enumerate(cases):
        for batch in case.batches:
            try:
                outputs = ask(candidate, [texts[index] for index in batch])
                pairs = zip(outputs, (known[index].places for index in batch), strict=True)
                logits = [_logits_at(own, places) for own, places in pairs]
            except Exception as error:  # runtimes share no base class of errors
                said = str(error).splitlines()[0] if str(error) else ""
                failed = f"{case.name}: the candidate failed with {type(error).__name__}"
                problems.append(f"{failed}: {said}")
                break
            replies += [(number, *reply) for reply in zip(batch, logits, strict=True)]
            bar.advance(len(batch))
    return replies, problems


def _logits_at(outputs: Outputs, places: IntArray) -> npt.NDArray[np.float32]:
    """Return the logits at the positions of the reference's predictions.

    Raises:
        ModelError: there are no logits at one of them.
    """
    if np.array_equal(outputs.places, places):
        return outputs.logits
    rows = {place: row for row, place in enumerate(outputs.places.tolist())}
    if missing := [place for place in places.tolist() if place not in rows]:
        raise ModelError(f"no prediction for word {missing[0] + 1}, which its reference predicts")
    return outputs.logits[[rows[place] for place in places.tolist()]]


def _non_finite(whose: str, logits: FloatArray, texts: Sequence[Question]) -> list[str]:
    """Return the number of predictions that are not finite; `texts` are the texts of the rows."""
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1)).tolist()
    if not broken:
        return []
    return [
        f"{whose} are NaN or infinite in {len(broken)} of {len(logits)} predictions, "
        f"allowed 0; first: {texts[broken[0]].quote()}"
    ]


@dataclass(frozen=True)
class Truth:
    """True labels of the task's texts, and the metric for predictions."""

    label_ids: Sequence[Any] | IntArray
    """Label ids, in the order of the examples."""
    metric: str
    labels: tuple[str, ...] = ()
    """Label names, for metrics that read names."""

    def of_head(self, name: str, kind: Problem[Any]) -> Truth:
        """Return the truth with the metric of one of several heads, which is the default of its
        kind if the task's metric is for other heads; `self` for no name."""
        if not name:
            return self
        usual, *_ = kind.metrics_of(labels_of_head(self.labels, name), ())
        return replace(self, metric=f"{name}{OF_HEAD}{of_one_head(self.metric, name) or usual}")


class Figures(Record):
    """Measured differences; None if nothing finite could be compared."""

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
        "sizes of the reference's logits; None of none",
    )
    correlation: float | None = Field(
        None,
        description="of the logits over texts, in the worst arrangement; None where the "
        "reference's are the same for all texts",
    )
    correlation_high: float | None = Field(
        None, description="the upper end of its 95 % interval, in the worst arrangement"
    )
    agreement: float | None = Field(
        None, description="share of equal predictions, of all rows; None of numbers"
    )
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


def measure_figures(
    paired: PairedLogits,
    decided: BoolArray,
    truth: Truth | None = None,
    whole: PairedLogits | None = None,
) -> Figures:
    """Return the figures of some logits; those on the score need the truth.

    Means, percentiles, decided agreement and score are those of the worst arrangement: damage that
    only batches show would be halved by the single texts.

    Args:
        paired: logits of both models.
        decided: whether the reference's decision is not a near-tie (rows, decisions).
        truth: truth for the texts.
        whole: outputs of all heads, if `paired` has those of one; the truth is for these.
    """
    scored = whole or paired
    relative, agrees = paired.relative_differences, paired.agrees
    cases, edges = paired.rows_of_cases(edge=False), paired.rows_of_cases(edge=True)
    strong = paired.cosines[~np.isnan(paired.cosines)]
    agreements = [agrees[case][decided[case]] for case in cases if decided[case].any()]
    correlations = [
        (value, _high_correlation(value, int(case.sum())))
        for case in cases
        if (value := paired.correlation(case)) is not None
    ]
    changes = (
        [scored.score_change(case, truth) for case in scored.rows_of_cases(edge=False)]
        if truth
        else []
    )
    return Figures(
        max_abs_difference=largest(paired.differences),
        mean_abs_difference=_most(paired.differences[case].mean() for case in cases),
        min_cosine=_least(strong),
        median_difference=_most(np.median(relative[case]) for case in cases),
        median_difference_low=_most(_low(relative[case], 0.5) for case in cases),
        p95_difference=_most(np.quantile(relative[case], 0.95) for case in cases),
        p95_difference_low=_most(_low(relative[case], 0.95) for case in cases),
        edge_difference=_most(np.median(relative[case]) for case in edges),
        common_shift=largest(paired.relative_shifts),
        correlation=_least(value for value, _ in correlations),
        correlation_high=_least(high for _, high in correlations),
        agreement=float(agrees[paired.decides].mean()) if agrees.size else None,
        decided_agreement=_least(each.mean() for each in agreements),
        decided_agreement_high=_least(map(_high_share, agreements)),
        score_change=_least(change.value for change in changes),
        score_change_high=_least(change.high for change in changes),
        near_ties=int((~decided)[paired.decides].sum()),
        near_ties_turned=int((~decided & ~agrees).sum()),
    )


LEAST_IS_WORST = frozenset(
    (
        *("min_cosine", "correlation", "correlation_high", "agreement", "decided_agreement"),
        *("decided_agreement_high", "score_change", "score_change_high"),
    )
)
SUMMED = frozenset(("near_ties", "near_ties_turned"))


def worst_figures(of_heads: Sequence[Figures]) -> Figures:
    """Return the worst of each figure over heads, and the sums of counts."""
    worst = {}
    for name in Figures.model_fields:
        values = [value for own in of_heads if (value := getattr(own, name)) is not None]
        reduce = sum if name in SUMMED else min if name in LEAST_IS_WORST else max
        worst[name] = reduce(values) if values else None
    return Figures(**worst)


def largest(values: FloatArray) -> float | None:
    """Return the largest value; None if empty."""
    return float(values.max()) if values.size else None


def _most(values: Iterable[Any]) -> float | None:
    return max(map(float, values), default=None)


def _least(values: Iterable[Any]) -> float | None:
    return min(map(float, values), default=None)


def _high_share(truths: BoolArray) -> float:
    """Return the upper end of the 95 % interval (Clopper-Pearson) of a share."""
    from scipy.stats import binomtest  # scipy takes a second to import

    interval = binomtest(int(truths.sum()), len(truths)).proportion_ci(0.95, method="exact")
    return float(interval.high)


def _high_correlation(value: float, rows: int) -> float:
    """Return the upper end of the 95 % interval (Fisher's) of a correlation; 1 for too few rows."""
    from scipy.stats import norm

    if abs(value) >= 1:  # except for rounding
        return value
    left = rows - FISHER_ROWS
    half = norm.ppf(0.975) / math.sqrt(left) if left > 0 else math.inf
    return math.tanh(math.atanh(value) + half)


def _low(values: FloatArray, quantile: float) -> float:
    """Return the lower end of the 95 % interval of a quantile, by order statistics.

    With too few values for an interval, return the smallest. Words of a text count as independent.
    """
    from scipy.stats import quantile_test

    low = quantile_test(values, p=quantile).confidence_interval(0.95).low
    return float(values.min() if np.isnan(low) else low)
