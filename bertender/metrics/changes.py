"""The honest difference of two models, or of two groups of models, by a paired bootstrap."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bertender.metrics.records import POINTS, Change, LabelSet
from bertender.metrics.resampling import mean_of_drawn, percentiles
from bertender.metrics.scores import METRICS, Rows

__all__ = ["paired_change", "paired_change_of_means"]

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
    values, resampled = METRICS[metric].resampled(
        label_ids, [*references, *candidates], labels, seed
    )
    first = len(references)
    generator = np.random.default_rng((seed, len(values)))
    means = [mean_of_drawn(part, generator) for part in (resampled[:first], resampled[first:])]
    low, high = percentiles(means[1] - means[0])
    value = float(np.mean(values[first:]) - np.mean(values[:first]))
    return Change(value=POINTS * value, low=POINTS * low, high=POINTS * high)
