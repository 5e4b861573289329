"""What the parity gate compares: a reference's and a candidate's logits of the same texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.core.progress import Bar, progress_bar
from bertender.measure.parity_cases import Case, Question, arrange, ask, questions_of
from bertender.measure.tolerances import Tolerance
from bertender.models.predictor import Classifier
from bertender.text.example import Example

__all__ = ["Answers", "collect_answers", "no_answers"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

LEAST_SPREAD = 0.05
"""Of the root mean square of the centred logits."""
STRONG = 0.25
"""The direction of logits that are all near 0 is noise: cosines count from this share of the
largest logit on."""


@dataclass(frozen=True)
class Answers:
    """Finite logits side by side; each array has one row for an answer of the candidate.

    `scale` is the largest absolute logit of the reference, over all texts; `spread` the standard
    deviation over the task's texts of its centred logits, all labels together.
    """

    texts: tuple[Question, ...]
    cases: tuple[Case, ...]
    text_ids: IntArray
    case_ids: IntArray
    expected: FloatArray
    answered: FloatArray
    scale: float
    spread: float
    problems: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.text_ids)

    @cached_property
    def differences(self) -> FloatArray:
        """Absolute differences (rows, labels)."""
        return np.asarray(np.abs(self.answered - self.expected))

    @cached_property
    def cosines(self) -> FloatArray:
        """Cosine of each row with its reference (rows,); NaN where the reference is near 0."""
        norms = np.linalg.norm(self.expected, axis=1)
        lengths = norms * np.linalg.norm(self.answered, axis=1)
        products = (self.expected * self.answered).sum(axis=1)
        cosines = np.divide(products, lengths, out=np.zeros_like(products), where=lengths > 0)
        strong = (norms > 0) & (norms >= STRONG * self.scale)
        return np.asarray(np.where(strong, cosines, np.nan))

    @cached_property
    def gaps(self) -> FloatArray:
        """How far the reference's two largest logits are apart (rows,)."""
        ordered = np.sort(self.expected, axis=1)
        return np.asarray(ordered[:, -1] - ordered[:, -2])

    @cached_property
    def agrees(self) -> npt.NDArray[np.bool_]:
        """Whether the predictions are equal (rows,)."""
        return np.asarray(self.expected.argmax(axis=1) == self.answered.argmax(axis=1))

    @cached_property
    def relative_differences(self) -> FloatArray:
        """Differences that change probabilities, as shares of the spread (rows,).

        The root mean square over labels of the centred logits' differences: what is added to all
        logits of a text changes no probability.
        """
        moved = _centred(self.answered) - _centred(self.expected)  # (rows, labels)
        of_rows = np.sqrt((moved**2).mean(axis=1))
        return np.asarray(of_rows / self.spread if self.spread else of_rows)

    def decided(self, tolerance: Tolerance) -> npt.NDArray[np.bool_]:
        """Whether the reference's prediction is not a near-tie (rows,)."""
        if tolerance.tie_spreads is not None:
            # two of the centred logits that each move by d can swap when they are within 2 d
            return np.asarray(self.gaps / 2 > tolerance.tie_spreads * self.spread)
        return np.asarray(self.gaps > (tolerance.tie_margin or 0.0) * self.scale)

    @cached_property
    def edge_rows(self) -> npt.NDArray[np.bool_]:
        """Which rows are of edge cases (rows,)."""
        return np.array([case.edge for case in self.cases], dtype=bool)[self.case_ids]

    def wide_cases(self) -> list[npt.NDArray[np.bool_]]:
        """Return, for each case that is no edge and has answers, which rows are its own."""
        return self._cases_of(edge=False)

    def edge_cases(self) -> list[npt.NDArray[np.bool_]]:
        """Return, for each edge case that has answers, which rows are its own."""
        return self._cases_of(edge=True)

    def _cases_of(self, edge: bool) -> list[npt.NDArray[np.bool_]]:
        chosen = (index for index, case in enumerate(self.cases) if case.edge is edge)
        masks = (self.case_ids == index for index in chosen)
        return [mask for mask in masks if mask.any()]

    def describe(self, row: int) -> str:
        """Return which text a row is, and where it stood."""
        case = self.cases[int(self.case_ids[row])].name
        return f"{self.texts[int(self.text_ids[row])].quote()} ({case})"


def no_answers(labels: int) -> Answers:
    """Return the answers of a candidate that could not be asked."""
    nothing, nobody = np.empty((0, labels)), np.empty(0, dtype=np.int64)
    return Answers((), (), nobody, nobody, nothing, nothing, 0.0, 0.0, ())


def collect_answers(
    reference: Classifier,
    candidate: Classifier,
    examples: Sequence[Example],
    batch_sizes: Sequence[int],
    seed: int,
) -> Answers:
    """Ask both classifiers; the reference one text at a time, the candidate in every case.

    Whatever makes rows incomparable (an error of the candidate, a wrong shape, NaN) is described
    in `problems`, and the rows are left out.
    """
    texts = questions_of(reference, candidate, examples)
    cut = sum(text.tokens is not None for text in texts)
    cases = arrange(len(examples), cut, batch_sizes, seed)
    total = len(texts) + sum(len(batch) for case in cases for batch in case.batches)
    problems: list[str] = []
    with progress_bar(f"parity {candidate.name}", total) as bar:
        truth = _ask_reference(reference, texts, bar)
        rows = [
            (case_id, text_id, logits)
            for case_id, case in enumerate(cases)
            for text_id, logits in _ask_candidate(candidate, texts, case, bar, problems)
        ]
    case_ids = np.array([case_id for case_id, _, _ in rows], dtype=np.int64)
    text_ids = np.array([text_id for _, text_id, _ in rows], dtype=np.int64)
    expected = truth[text_ids]
    answered = np.array([logits for _, _, logits in rows], dtype=np.float64).reshape(expected.shape)
    problems += _non_finite("reference", truth, texts)
    problems += _non_finite("candidate", answered, [texts[index] for index in text_ids])
    finite = np.isfinite(expected).all(axis=1) & np.isfinite(answered).all(axis=1)
    return Answers(
        texts=texts,
        cases=cases,
        text_ids=text_ids[finite],
        case_ids=case_ids[finite],
        expected=expected[finite],
        answered=answered[finite],
        scale=float(np.abs(truth[np.isfinite(truth)]).max(initial=0.0)),
        spread=_spread(truth[: len(examples)]),
        problems=tuple(problems),
    )


def _centred(logits: FloatArray) -> FloatArray:
    """Return logits (rows, labels) less the mean of each row."""
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


def _spread(logits: FloatArray) -> float:
    """Return how far finite logits (texts, labels) spread over the texts; 0 of none.

    Of a model that hardly tells texts apart, a share of the size of its logits: what rounding adds
    to so little decides nothing.
    """
    finite = _centred(logits[np.isfinite(logits).all(axis=1)])
    if not len(finite):
        return 0.0
    size = float(np.sqrt(np.square(finite).mean()))
    return max(float(np.sqrt(finite.var(axis=0).mean())), LEAST_SPREAD * size)


def _ask_reference(reference: Classifier, texts: Sequence[Question], bar: Bar) -> FloatArray:
    answers = np.empty((len(texts), len(reference.labels)))
    for index, text in enumerate(texts):
        logits = ask(reference, [text])
        if logits.shape != (1, len(reference.labels)):
            raise ModelError(
                f"reference {reference.name} answers one text with logits of shape "
                f"{logits.shape}, must be (1, {len(reference.labels)}). Build the reference again."
            )
        answers[index] = logits[0]
        bar.advance()
    return answers


def _ask_candidate(
    candidate: Classifier,
    texts: Sequence[Question],
    case: Case,
    bar: Bar,
    problems: list[str],
) -> Iterator[tuple[int, FloatArray]]:
    """Yield (text, logits) of a case; the first problem is noted and ends it."""
    labels = len(candidate.labels)
    for batch in case.batches:
        try:
            logits = ask(candidate, [texts[index] for index in batch])
        except Exception as error:  # runtimes share no base class, and all failures are wanted
            problems.append(f"{case.name}: the candidate failed with {_first_line(error)}")
            return
        if logits.shape != (len(batch), labels):
            problems.append(
                f"{case.name}: logits have shape {logits.shape}, must be ({len(batch)}, {labels}) "
                f"for {len(batch)} texts and {labels} labels; first {texts[batch[0]].quote()}"
            )
            return
        yield from zip(batch, logits, strict=True)
        bar.advance(len(batch))


def _non_finite(who: str, logits: FloatArray, texts: Sequence[Question]) -> list[str]:
    """Say how many answers are not finite; `texts` are those of the logits' rows."""
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1)).tolist()
    if not broken:
        return []
    return [
        f"{who} logits are NaN or infinite in {len(broken)} of {len(logits)} answers, allowed 0; "
        f"first: {texts[broken[0]].quote()}"
    ]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
