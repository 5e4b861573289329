"""A reference's and a candidate's logits of the same texts, for the parity gate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.measure.tolerances import Tolerance
from bertender.problems import SINGLE_LABEL, ProblemType

if TYPE_CHECKING:  # it loads PyTorch, and golden texts are compared where a model is served
    from bertender.measure.parity_cases import Case, Question

__all__ = ["FloatArray", "IntArray", "NOBODY", "PairedLogits", "no_logits"]

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
    problem: ProblemType[Any] = SINGLE_LABEL

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
