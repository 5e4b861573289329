"""Entity F1: how many whole entities a tagger finds, with a 95 % interval over sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.metrics.resampling import CONFIDENCE, POINTS, RESAMPLES, Change, LabelSet, Score

METRIC = "entity_f1"
OUTSIDE = "O"
SCHEME_TAG = re.compile(f"{OUTSIDE}|[BIESLUM](-.+)?", re.DOTALL)
"""A tag of BIO, or, of a finished tagger, of IOBES, BILOU or BMES."""
SAME_AS = {"L": "E", "U": "S", "M": "I"}
"""Prefixes of BILOU and BMES -> those of IOBES."""

Sentence = Sequence[str]
"""The tags of a sentence."""

Counts = npt.NDArray[np.float64]
"""Entities that are right, true and predicted, (sentences, 3)."""


class EntityF1:
    """The row of METRICS; predictions are the numbers of tags, one for each word of a sentence."""

    def score(
        self, label_ids: Any, predictions: Any, known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        """Return the value and its interval."""
        truth, predicted = (_tags(numbers, known.names) for numbers in (label_ids, predictions))
        f1 = entity_f1(truth, predicted, seed=seed)
        return f1.value, f1.low, f1.high

    def resampled(
        self,
        label_ids: Any,
        predictions: Sequence[Any],
        known: LabelSet,
        seed: int,
    ) -> tuple[list[float], list[npt.NDArray[np.float64]]]:
        """Return the value of each model's predictions, and its values (resamples,)."""
        truth = _tags(label_ids, known.names)
        counts = [entity_counts(truth, _tags(each, known.names)) for each in predictions]
        whole, draws = np.ones((1, len(truth))), _drawn(len(truth), seed)
        values = [float(_f1(whole @ each)[0]) for each in counts]
        return values, [_f1(draws @ each) for each in counts]


def entity_f1(truth: Sequence[Sentence], predicted: Sequence[Sentence], *, seed: int = 0) -> Score:
    """Return the F1 of entities over all sentences, with a bootstrap interval over sentences.

    Args:
        truth: the tags of each sentence.
        predicted: a tagger's, one for each word.
        seed: what the bootstrap draws from.

    Raises:
        DataError: there are no sentences, or not one tag for each word.
    """
    if not truth or [len(tags) for tags in truth] != [len(tags) for tags in predicted]:
        raise DataError(
            f"{len(predicted)} predicted sentences cannot be scored against {len(truth)}: there "
            "must be some, and one tag for each of their words."
        )
    from seqeval.metrics import f1_score  # it loads scikit-learn, see `scores`

    value = f1_score(list(map(list, truth)), list(map(list, predicted)), zero_division=0)
    counts = entity_counts(truth, predicted)
    low, high = _percentiles(_f1(_drawn(len(counts), seed) @ counts))
    return Score(metric=METRIC, value=float(value), low=low, high=high, n=len(truth))


def entity_change(
    reference: Sequence[Counts], candidate: Sequence[Counts], *, seed: int = 0
) -> Change:
    """Return what taggers gain over others on the same sentences, in points, each on average.

    Args:
        reference: `entity_counts` of one tagger for each seed that it was trained with.
        candidate: the same of the other.
        seed: what the bootstrap draws from; it draws sentences, which all taggers have read.
    """
    whole = np.ones((1, len(reference[0])))
    draws = _drawn(len(reference[0]), seed)
    value = _mean_f1(whole, candidate) - _mean_f1(whole, reference)
    low, high = _percentiles(_mean_f1(draws, candidate) - _mean_f1(draws, reference))
    return Change(value=POINTS * float(value[0]), low=POINTS * low, high=POINTS * high)


def entity_counts(truth: Sequence[Sentence], predicted: Sequence[Sentence]) -> Counts:
    """Return the entities that are right, true and predicted in each sentence, (sentences, 3)."""
    from seqeval.metrics.sequence_labeling import get_entities  # as above

    pairs = [
        (set(get_entities(list(tags))), set(get_entities(list(ours))))
        for tags, ours in zip(truth, predicted, strict=True)
    ]
    return np.array([(len(a & b), len(a), len(b)) for a, b in pairs], dtype=np.float64)


def _tags(sentences: Sequence[Sequence[int]], names: Sequence[str]) -> list[list[str]]:
    """Return the names of tags; a word with a plain tag, of no scheme, is an entity of its own."""
    if all(map(SCHEME_TAG.fullmatch, names)):  # B, I, E and S are what `get_entities` reads
        names = [f"{SAME_AS.get(name[0], name[0])}{name[1:]}" for name in names]
    else:
        names = [name if name == OUTSIDE else f"B-{name}" for name in names]
    return [[names[number] for number in numbers] for numbers in sentences]


def _drawn(sentences: int, seed: int) -> npt.NDArray[np.float64]:
    """Return how often each resample draws each sentence, (resamples, sentences)."""
    chances = np.full(sentences, 1 / sentences)
    return np.random.default_rng(seed).multinomial(sentences, chances, size=RESAMPLES) * 1.0


def _mean_f1(draws: npt.NDArray[np.float64], taggers: Sequence[Counts]) -> npt.NDArray[np.float64]:
    return np.asarray(np.mean([_f1(draws @ counts) for counts in taggers], axis=0))


def _f1(counts: Counts) -> npt.NDArray[np.float64]:
    """Return the F1 of each row of sums, (rows, 3) -> (rows,)."""
    right, true, predicted = counts.T
    shares = np.divide(2 * right, true + predicted, out=np.zeros_like(right), where=right > 0)
    return np.asarray(shares)


def _percentiles(values: npt.NDArray[np.float64]) -> tuple[float, float]:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)
