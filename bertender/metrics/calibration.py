"""Calibration: probabilities that match the shares of correct predictions, and their error.

A temperature divides all logits and changes no prediction (Guo et al., arXiv:1706.04599, section
4). Each label of a set has its own curve: Platt's line of logits, or an isotonic one, which needs
more texts. The expected calibration error is equation 3 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertender.core.findings import Reliability, ReliabilityBin, ReliabilityChange
from bertender.metrics.metric import FloatArray, IntArray, divide, drawn, percentiles

BoolArray = npt.NDArray[np.bool_]

BINS = 15
SMALLEST = 1e-12
"""Smallest probability in a logarithm."""
TEMPERATURES = (0.05, 20.0)
"""Range of the search; a model beyond it has learned nothing, or has memorised its training
texts."""
FEWEST_OF_LABEL = 10
"""Fewest texts with a label, and without it, for its own curve."""


def log_sigmoid(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the logarithm of the sigmoid of logits."""
    return np.asarray(-np.logaddexp(0.0, -logits))


def log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the logarithm of the softmax of each row, (rows, labels)."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def fit_temperature(logits: FloatArray, truth: BoolArray) -> float:
    """Return the temperature with the least negative log-likelihood.

    Args:
        logits: (rows, labels).
        truth: whether each label is correct, (rows, labels).
    """
    from scipy.optimize import minimize_scalar

    def nll(log_temperature: float) -> float:
        return float(-log_softmax(logits / np.exp(log_temperature))[truth].mean())

    # convex in 1 / T, so there is one minimum in log T
    bounds = tuple(map(float, np.log(TEMPERATURES)))
    return float(np.exp(minimize_scalar(nll, bounds=bounds, method="bounded").x))


def fit_line(logits: FloatArray, truth: BoolArray) -> tuple[float, float]:
    """Return slope and shift for one label's logits (texts,), by logistic regression.

    The targets are Platt's, (n+ + 1) / (n+ + 2) and 1 / (n- + 2), so that the slope stays finite if
    the logit separates the classes. The slope is 0 or more, as of an isotonic curve: else a text
    with the label would be less probable than one without it.
    """
    from sklearn.linear_model import LogisticRegression

    count = int(truth.sum())
    yes, no = (count + 1) / (count + 2), 1 / (len(truth) - count + 2)
    target = np.where(truth, yes, no)
    # a target between 0 and 1 is a weighted row of each class
    model = LogisticRegression(C=1e6, max_iter=1000)
    rows = np.concatenate([logits, logits])[:, None]
    classes = np.repeat([1, 0], len(logits))
    model.fit(rows, classes, sample_weight=np.concatenate([target, 1 - target]))
    if model.coef_[0, 0] < 0:  # the loss is convex: of the slopes allowed, 0 has the least
        mean = float(target.mean())
        return 0.0, float(np.log(mean / (1 - mean)))
    return float(model.coef_[0, 0]), float(model.intercept_[0])


def fit_points(logits: FloatArray, truth: BoolArray) -> tuple[tuple[float, float], ...]:
    """Return the corners of the isotonic regression for one label's logits (texts,).

    By Laplace's rule, probabilities are no nearer to 0 or 1 than the number of texts can show.
    """
    from sklearn.isotonic import IsotonicRegression

    least = 1 / (len(truth) + 2)
    model = IsotonicRegression(y_min=least, y_max=1 - least).fit(logits, truth)
    return tuple(
        (float(x), float(y)) for x, y in zip(model.X_thresholds_, model.y_thresholds_, strict=True)
    )


def has_enough(truth: BoolArray) -> bool:
    """Return whether a label's texts (texts,) are enough for its own curve."""
    count = int(truth.sum())
    return min(count, len(truth) - count) >= FEWEST_OF_LABEL


class Judged:
    """Probabilities for some texts, and the correct labels.

    Args:
        probabilities: (rows, labels).
        truth: whether a label is correct, (rows, labels).
        texts: number of the text of each row, (rows,), from 0; several rows may share a text.
        one_of_labels: a row has one label, and the probability of the predicted label counts; else
            each label of a row is a prediction.
    """

    def __init__(
        self,
        probabilities: FloatArray,
        truth: BoolArray,
        texts: IntArray,
        *,
        one_of_labels: bool,
    ) -> None:
        if one_of_labels:
            rows, best = np.arange(len(truth)), probabilities.argmax(axis=1)
            self.confidence = probabilities[rows, best]  # (predictions,)
            self.right = truth[rows, best]
            self.squares = np.square(probabilities - truth).sum(axis=1)
            of_truth = (probabilities * truth).sum(axis=1)
            self.texts = texts
        else:
            self.confidence, self.right = probabilities.ravel(), truth.ravel()
            self.squares = np.square(self.confidence - self.right)
            of_truth = np.where(self.right, self.confidence, 1 - self.confidence)
            self.texts = np.repeat(texts, truth.shape[1])
        self.nlls = -np.log(np.maximum(of_truth, SMALLEST))
        self.bins = np.minimum((self.confidence * BINS).astype(np.int64), BINS - 1)

    def reliability(self) -> Reliability:
        """Return the distance of the probabilities from the shares of correct predictions."""
        counts, confidence, right = (
            np.bincount(self.bins, weights, BINS)
            for weights in (np.ones(len(self.bins)), self.confidence, self.right.astype(float))
        )
        n = len(self.bins)
        return Reliability(
            n=n,
            ece=float(np.abs(confidence - right).sum() / n),
            brier=float(self.squares.mean()),
            nll=float(self.nlls.mean()),
            bins=tuple(
                ReliabilityBin(
                    low=place / BINS,
                    high=(place + 1) / BINS,
                    count=int(counts[place]),
                    confidence=float(confidence[place] / counts[place]),
                    right=float(right[place] / counts[place]),
                )
                for place in np.flatnonzero(counts).tolist()
            ),
        )

    def of_draws(self, draws: FloatArray) -> dict[str, FloatArray]:
        """Return ece, brier and nll of each resample (resamples,), given how often each draws each
        text (resamples, texts)."""
        texts = draws.shape[1]

        def by_text(values: FloatArray) -> FloatArray:
            return np.asarray(np.bincount(self.texts, values, texts), dtype=np.float64)

        n = draws @ by_text(np.ones(len(self.texts)))
        gaps = np.zeros((texts, BINS))
        np.add.at(gaps, (self.texts, self.bins), self.confidence - self.right)
        return {
            "ece": divide(np.abs(draws @ gaps).sum(axis=1), n),
            "brier": divide(draws @ by_text(self.squares), n),
            "nll": divide(draws @ by_text(self.nlls), n),
        }


def reliability_changes(
    before: Judged, after: Judged, texts: int, seed: int = 0
) -> dict[str, ReliabilityChange]:
    """Return the change of each measure on the same texts, with intervals over resampled texts."""
    draws, whole = drawn(texts, seed), np.ones((1, texts))
    changes = {}
    resampled = before.of_draws(draws), after.of_draws(draws)
    measured = before.of_draws(whole), after.of_draws(whole)
    for name in measured[0]:
        low, high = percentiles(resampled[1][name] - resampled[0][name])
        value = float(measured[1][name][0] - measured[0][name][0])
        changes[name] = ReliabilityChange(value=value, low=low, high=high)
    return changes


def on_curve(logits: FloatArray, points: Sequence[tuple[float, float]]) -> FloatArray:
    """Return the probabilities of logits on an isotonic curve."""
    places, values = zip(*points, strict=True)
    return np.asarray(np.interp(logits, places, values))
