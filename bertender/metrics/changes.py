"""The honest difference of two models, or of two groups of models, by a paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertender.metrics.records import POINTS, Change, LabelSet
from bertender.metrics.resampling import FloatArray, mean_of_drawn, percentiles
from bertender.metrics.scores import METRICS, Rows

__all__ = [
    "UNKNOWN",
    "ResampledChange",
    "mean_change",
    "paired_change",
    "paired_change_of_means",
    "resampled_change",
]

UNKNOWN = LabelSet()
"""Labels that are those which occur."""


def paired_change(
    metric: str,
    label_ids: Rows,
    reference_predictions: Rows,
    candidate_predictions: Rows,
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> Change:
    """Return what the candidate gains over the reference, in points, by a paired bootstrap.

    Both models predict the same rows, so most of a score's uncertainty (which rows were drawn)
    is common to both and cancels: this interval is narrower than the two scores' intervals suggest.
    Other arguments and errors are those of `score`; `labels` are those of the task.
    """
    return paired_change_of_means(
        metric,
        label_ids,
        [reference_predictions],
        [candidate_predictions],
        labels,
        seed=seed,
    )


def paired_change_of_means(
    metric: str,
    label_ids: Rows,
    references: Sequence[Rows],
    candidates: Sequence[Rows],
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> Change:
    """Return what the candidates gain over the references on average, by a paired bootstrap.

    Both are the predictions of several models on the same rows, such as one method's students of
    several seeds. Each resample draws rows, the same for all models, and models: so the interval
    holds what other texts and what other seeds would change. Of one model alone, the seed's part
    is unknown and not in it. Other arguments and errors are those of `score`.
    """
    return resampled_change(metric, label_ids, references, candidates, labels, seed=seed).change()


@dataclass(frozen=True)
class ResampledChange:
    """A paired change in points, and what it is in each resample."""

    value: float
    draws: FloatArray
    """(resamples,)"""

    def change(self) -> Change:
        """Return the change with its interval."""
        low, high = percentiles(self.draws)
        return Change(value=self.value, low=low, high=high)


def resampled_change(
    metric: str,
    label_ids: Rows,
    references: Sequence[Rows],
    candidates: Sequence[Rows],
    labels: LabelSet = UNKNOWN,
    *,
    seed: int = 0,
) -> ResampledChange:
    """Return the change of `paired_change_of_means` with its resamples.

    Changes on several data sets can be averaged where each has a seed of its own.
    """
    values, resampled = METRICS[metric].resampled(
        label_ids, [*references, *candidates], labels, seed
    )
    first = len(references)
    generator = np.random.default_rng((seed, len(values)))
    means = [mean_of_drawn(part, generator) for part in (resampled[:first], resampled[first:])]
    value = float(np.mean(values[first:]) - np.mean(values[:first]))
    return ResampledChange(POINTS * value, POINTS * (means[1] - means[0]))


def mean_change(changes: Sequence[ResampledChange]) -> Change:
    """Return the average of changes on several data sets, which are drawn apart."""
    draws = np.mean([each.draws for each in changes], axis=0)
    return ResampledChange(float(np.mean([each.value for each in changes])), draws).change()
