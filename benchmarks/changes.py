"""Changes of scores on average over models and data sets, with intervals that hold both.

One model against another is `bertender.metrics.paired_change`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertender.metrics import METRICS
from bertender.metrics.metric import (
    POINTS,
    UNKNOWN,
    Change,
    FloatArray,
    LabelSet,
    Rows,
    percentiles,
)


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
    """Return what the candidates gain over the references on average, by a paired bootstrap.

    Both are the predictions of several models on the same rows, such as one method's students of
    several seeds. Each resample draws rows, the same for all models, and models: so the interval
    holds what other texts and what other seeds would change. Of one model alone, the seed's part
    is unknown and not in it. Changes on several data sets can be averaged where each has a seed of
    its own. Other arguments and errors are those of `score`.
    """
    models = [*references, *candidates]
    values, resampled = METRICS[metric].resampled(label_ids, models, labels, seed)
    first = len(references)
    generator = np.random.default_rng((seed, len(values)))
    means = [_mean_of_drawn(part, generator) for part in (resampled[:first], resampled[first:])]
    value = float(np.mean(values[first:]) - np.mean(values[:first]))
    return ResampledChange(POINTS * value, POINTS * (means[1] - means[0]))


def mean_change(changes: Sequence[ResampledChange]) -> Change:
    """Return the average of changes on several data sets, which are drawn apart."""
    draws = np.mean([each.draws for each in changes], axis=0)
    return ResampledChange(float(np.mean([each.value for each in changes])), draws).change()


def _mean_of_drawn(values: Sequence[FloatArray], generator: np.random.Generator) -> FloatArray:
    """Return the means over models that are drawn anew in each resample.

    One fewer is drawn than there are: the variance of such means is that of a mean of all of them,
    which drawing as many understates, by a third for three (McCarthy and Snowden 1985).

    Args:
        values: of each model (resamples,).
        generator: what the draws come from.
    """
    models = np.stack(values)  # (models, resamples)
    if len(models) == 1:
        return np.asarray(models[0])
    drawn = generator.integers(len(models), size=(len(models) - 1, models.shape[1]))
    return np.asarray(np.take_along_axis(models, drawn, axis=0).mean(axis=0))
