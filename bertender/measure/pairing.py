"""Run a reference and a candidate on the same texts, and pair their logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.core.errors import ModelError
from bertender.core.progress import Bar, progress_bar
from bertender.measure.paired_logits import NOBODY, FloatArray, IntArray, PairedLogits
from bertender.measure.parity_cases import (
    Arrangement,
    Case,
    Question,
    arrange,
    ask,
    questions_of,
)
from bertender.models.predictor import Classifier
from bertender.problems import Outputs
from bertender.text.example import Example

__all__ = ["pair_logits"]

LEAST_SPREAD = 0.05
"""Of the root mean square of the centred logits."""
LEAST_SPREAD_LOGITS = 0.05
"""In logits. Where two move in opposite directions, each by a fifth of it, as the median text of 8
bits may, a probability changes by half a hundredth at most: p (1 - p) times the 0.02 by which their
distance changes."""


def pair_logits(
    reference: Classifier,
    candidate: Classifier,
    examples: Sequence[Example],
    arrangement: Arrangement,
) -> PairedLogits:
    """Ask both classifiers; the reference one text at a time, the candidate in every case.

    Whatever makes rows incomparable (an error of the candidate, a wrong shape, NaN) is described
    in `problems`, and the rows are left out.
    """
    texts = questions_of(reference, candidate, examples)
    cut = sum(text.tokens is not None for text in texts)
    edges = (len(texts) - len(examples) - cut) // 2
    cases = arrange(len(examples), edges, cut, arrangement)
    problems: list[str] = []
    with progress_bar(f"parity {candidate.name}", _times_asked(texts, cases)) as bar:
        known = _Known(reference, texts, _ask_reference(reference, texts, bar), len(examples))
        replies = [
            _Reply(number, *reply)
            for number, case in enumerate(cases)
            for reply in _ask_candidate(candidate, known, case, bar, problems)
        ]
    return _side_by_side(known, cases, replies, problems)


def _times_asked(texts: Sequence[Question], cases: Sequence[Case]) -> int:
    """Return how many texts both models are asked about, each as often as it is asked."""
    return len(texts) + sum(len(batch) for case in cases for batch in case.batches)


class _Reply(NamedTuple):
    """The candidate's logits (rows, labels) of a text, by the numbers of case and text."""

    case: int
    text: int
    logits: npt.NDArray[np.float32]


@dataclass(frozen=True)
class _Known:
    """The reference's outputs for each text; those of the task come first."""

    reference: Classifier
    texts: tuple[Question, ...]
    outputs: Sequence[Outputs]
    examples: int
    """How many texts are of the task."""

    @cached_property
    def logits(self) -> FloatArray:
        """All its logits (rows, labels)."""
        return self.below([each.logits for each in self.outputs])

    @property
    def scale(self) -> float:
        """The largest absolute logit."""
        logits = self.logits
        return float(np.abs(logits[np.isfinite(logits)]).max(initial=0.0))

    @property
    def size_and_spread(self) -> tuple[float, float]:
        """How large the logits of the task's texts are, and how far they spread over them."""
        of_texts = self.below([each.logits for each in self.outputs[: self.examples]])
        return _size_and_spread(self.reference.problem.probable, of_texts)

    def below(self, parts: Sequence[npt.NDArray[Any]]) -> FloatArray:
        """Return logits below one another, (rows, labels); no rows where there are no parts."""
        nothing = np.empty((0, len(self.reference.labels)))
        return np.asarray(np.concatenate([nothing, *parts]), dtype=np.float64)

    def problems(self) -> list[str]:
        """Return how many of its predictions are not finite, in words."""
        rows = zip(self.texts, self.outputs, strict=True)
        owners = [text for text, own in rows for _ in own.places]
        return _non_finite("reference", self.logits, owners)


def _side_by_side(
    known: _Known, cases: tuple[Case, ...], replies: Sequence[_Reply], problems: Sequence[str]
) -> PairedLogits:
    """Return all outputs of both models, row by row, without what is not finite."""
    own = [known.outputs[reply.text] for reply in replies]
    expected = known.below([each.logits for each in own])
    actual = known.below([reply.logits for reply in replies])
    text_ids = _of_rows([reply.text for reply in replies], replies)
    asked = [known.texts[text] for text in text_ids]
    finite = np.isfinite(expected).all(axis=1) & np.isfinite(actual).all(axis=1)
    size, spread = known.size_and_spread
    return PairedLogits(
        texts=known.texts,
        cases=cases,
        text_ids=text_ids[finite],
        case_ids=_of_rows([reply.case for reply in replies], replies)[finite],
        expected=expected[finite],
        actual=actual[finite],
        scale=known.scale,
        spread=spread,
        size=size,
        problems=(*problems, *known.problems(), *_non_finite("candidate", actual, asked)),
        places=np.concatenate([NOBODY, *(each.places for each in own)])[finite],
        problem=known.reference.problem,
    )


def _of_rows(numbers: Sequence[int], replies: Sequence[_Reply]) -> IntArray:
    """Return a number of each reply for each of its rows (rows,)."""
    return np.repeat(np.array(numbers, dtype=np.int64), [len(reply.logits) for reply in replies])


def _size_and_spread(
    probable: Callable[[FloatArray], FloatArray], logits: FloatArray
) -> tuple[float, float]:
    """Return the size of finite logits (texts, labels), and their spread over texts; 0 of none.

    Of a model that hardly distinguishes texts, the spread is a share of the logits, or what hardly
    changes a probability: what rounding adds to so little decides nothing.
    """
    finite = probable(logits[np.isfinite(logits).all(axis=1)])
    if not len(finite):
        return 0.0, 0.0
    average = float(np.sqrt(np.square(finite.mean(axis=0)).mean()))
    spread = float(np.sqrt(finite.var(axis=0).mean()))
    spread = max(spread, LEAST_SPREAD * float(np.hypot(average, spread)), LEAST_SPREAD_LOGITS)
    return average + spread, spread


def _ask_reference(reference: Classifier, texts: Sequence[Question], bar: Bar) -> list[Outputs]:
    outputs = []
    for text in texts:
        outputs += ask(reference, [text])
        bar.advance()
    return outputs


def _ask_candidate(
    candidate: Classifier, known: _Known, case: Case, bar: Bar, problems: list[str]
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield (text, logits (rows, labels)) of a case; the first problem is noted and ends it."""
    for batch in case.batches:
        try:
            outputs = ask(candidate, [known.texts[index] for index in batch])
            wanted = [known.outputs[index].places for index in batch]
            logits = [_at(own, places) for own, places in zip(outputs, wanted, strict=True)]
        except Exception as error:  # runtimes share no base class, and all failures are reported
            problems.append(f"{case.name}: the candidate failed with {_first_line(error)}")
            return
        yield from zip(batch, logits, strict=True)
        bar.advance(len(batch))


def _at(outputs: Outputs, places: IntArray) -> npt.NDArray[np.float32]:
    """Return the logits at the places that the reference predicts at.

    Raises:
        ModelError: there are none at one of them.
    """
    if np.array_equal(outputs.places, places):
        return outputs.logits
    rows = {place: row for row, place in enumerate(outputs.places.tolist())}
    if missing := [place for place in places.tolist() if place not in rows]:
        raise ModelError(f"no prediction for word {missing[0] + 1}, which its reference predicts")
    return outputs.logits[[rows[place] for place in places.tolist()]]


def _non_finite(who: str, logits: FloatArray, texts: Sequence[Question]) -> list[str]:
    """Return how many predictions are not finite; `texts` are those of the logits' rows."""
    broken = np.flatnonzero(~np.isfinite(logits).all(axis=1)).tolist()
    if not broken:
        return []
    return [
        f"{who} logits are NaN or infinite in {len(broken)} of {len(logits)} predictions, "
        f"allowed 0; first: {texts[broken[0]].quote()}"
    ]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
