"""Golden texts: which ones an artifact stores, and whether a model elsewhere predicts the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.artifact import GoldenText, GoldenTexts
from bertender.core.config import Record
from bertender.gate.figures import FloatArray, PairedLogits
from bertender.gate.judge import Parity, parity_sample
from bertender.gate.tolerances import TOLERANCES, Tolerance
from bertender.models.classifier import Classifier
from bertender.problems.problem import Problem
from bertender.text.batch import Example

# --- from bertender.measure.golden
# Golden texts of a graph that has passed the gate: which ones, and its outputs of them.

MOST_BYTES = 8 * 1024
"""Of a text: an artifact should stay small, and an endpoint refuses what is long."""

DIGITS = 8
"""Of a logit: a float32 has no more that count."""


def golden_examples(examples: Sequence[Example], count: int, seed: int) -> tuple[Example, ...]:
    """Return at most `count` examples that are not too long, the shortest and longest of them."""
    if not count:
        return ()
    short = [each for each in examples if sum(len(text.encode()) for text in each) <= MOST_BYTES]
    return parity_sample(short, count, seed)


@dataclass(frozen=True)
class Conditions:
    """How golden texts are predicted, and will be compared."""

    runtime: str
    """Row of RUNTIMES that runs the classifier."""
    tolerance: str
    """Row of TOLERANCES for others that run the same graph."""
    parity: Parity
    """Of the classifier with its source."""


def golden_texts(
    classifier: Classifier, examples: Sequence[Example], conditions: Conditions
) -> GoldenTexts:
    """Return examples of the task with a classifier's outputs of each of them alone."""
    return GoldenTexts(
        runtime=conditions.runtime,
        tolerance=conditions.tolerance,
        logit_scale=conditions.parity.logit_scale or 0.0,
        logit_spread=conditions.parity.logit_spread or 0.0,
        texts=tuple(_golden(classifier, example) for example in examples),
    )


def _golden(classifier: Classifier, example: Example) -> GoldenText:
    batch, problem = classifier.encode([example]), classifier.problem
    (outputs,) = classifier.outputs_of(batch)
    decoded = problem.decode(problem.choose(outputs.logits), outputs.places, example)
    return GoldenText(
        example=example,
        label=problem.by_names(decoded, classifier.labels),
        logits=tuple(tuple(map(_rounded, row)) for row in outputs.logits.tolist()),
        places=tuple(outputs.places.tolist()),
        tokens=int(batch.arrays["attention_mask"].sum()),
    )


def _rounded(logit: float) -> float:
    return float(f"{logit:.{DIGITS}g}")


# --- from bertender.measure.golden_check
# Whether a model predicts elsewhere, for its golden texts, what it predicted when it was made.
#
# By the arithmetic of the parity gate and the tolerance that the artifact names: predictions that
# are
# not near-ties must be equal, and logits must be as near as TOLERANCES lets them be. The gate
# judges
# the better end of an interval, since its texts are a sample; here the same model repeats the
# same
# texts, so that the figures themselves are judged. Nothing here loads PyTorch, and no message has
# a
# text.


@dataclass(frozen=True)
class GoldenPrediction:
    """A model's prediction for a golden text."""

    label: str | tuple[str, ...]
    logits: npt.NDArray[np.float64]
    """(rows, labels), at the places of the golden text"""


class GoldenCheck(Record):
    """Result of a comparison."""

    texts: int = Field(description="that were compared")
    left_out: int = Field(description="golden texts that were not")
    max_abs_difference: float | None = Field(description="of logits; None where none compare")
    failures: tuple[str, ...] = Field(
        description="what is wrong; empty where the predictions agree"
    )


@dataclass(frozen=True)
class Bound:
    """A row of BOUNDS: a bound of the tolerance on the distances of all texts."""

    name: str
    distances: Callable[[PairedLogits], FloatArray]
    """(rows,), in units of the bound"""
    figure: Callable[[FloatArray], float]
    unit: str

    def failure(self, paired: PairedLogits, golden: GoldenTexts, bounds: Tolerance) -> str | None:
        """Return what was measured, what is allowed, and the golden text that is furthest."""
        if (allowed := getattr(bounds, self.name)) is None:
            return None
        distances = self.distances(paired)
        value = self.figure(distances)
        if value <= allowed:
            return None
        worst = _name(int(paired.text_ids[int(distances.argmax())]), golden)
        return (
            f"{self.name} of the logits' differences is {value:.3g} times {self.unit}, allowed at "
            f"most {allowed:g}; the furthest is {worst}, by {float(distances.max()):.3g}"
        )


BOUNDS = (
    Bound(
        "max_abs",
        lambda paired: np.asarray(paired.differences.max(axis=1) / (paired.scale or 1.0)),
        lambda distances: float(distances.max()),
        "the largest logit",
    ),
    Bound(
        "max_median",
        lambda paired: paired.relative_differences,
        lambda distances: float(np.median(distances)),
        "the spread of logits over texts",
    ),
    Bound(
        "max_p95",
        lambda paired: paired.relative_differences,
        lambda distances: float(np.quantile(distances, 0.95)),
        "the spread of logits over texts",
    ),
)
"""Of the bounds of a Tolerance, those that a few texts can break."""


def check_golden(
    golden: GoldenTexts, predictions: Mapping[int, GoldenPrediction], problem: Problem[Any]
) -> GoldenCheck:
    """Compare predictions with those of golden texts.

    Args:
        golden: of an artifact.
        predictions: place of a golden text -> its prediction; texts without one are left out.
        problem: the artifact's problem type.
    """
    counts = {"texts": len(predictions), "left_out": len(golden.texts) - len(predictions)}
    shapes = [_shape_failure(golden, row, each) for row, each in predictions.items()]
    if failures := tuple(filter(None, shapes)):
        return GoldenCheck(**counts, max_abs_difference=None, failures=failures)
    paired, bounds = _paired(golden, predictions, problem), TOLERANCES[golden.tolerance]
    return GoldenCheck(
        **counts,
        max_abs_difference=float(paired.differences.max(initial=0.0)),
        failures=(
            *_other_labels(golden, predictions, paired, bounds),
            *filter(None, (bound.failure(paired, golden, bounds) for bound in BOUNDS)),
        ),
    )


def _shape_failure(golden: GoldenTexts, row: int, prediction: GoldenPrediction) -> str | None:
    wanted = (len(golden.texts[row].places), len(golden.texts[row].logits[0]))
    if prediction.logits.shape == wanted and np.isfinite(prediction.logits).all():
        return None
    shape = prediction.logits.shape if prediction.logits.shape != wanted else "not finite"
    return f"{_name(row, golden)}: its logits (rows, labels) are {shape}, must be {wanted}"


def _paired(
    golden: GoldenTexts, predictions: Mapping[int, GoldenPrediction], problem: Problem[Any]
) -> PairedLogits:
    texts = [golden.texts[row] for row in predictions]
    rows = [len(prediction.logits) for prediction in predictions.values()]
    return PairedLogits(
        texts=(),
        cases=(),
        text_ids=np.repeat([*predictions], rows),
        case_ids=np.zeros(sum(rows), dtype=np.int64),
        expected=np.concatenate([np.array(text.logits) for text in texts]),
        actual=np.concatenate([prediction.logits for prediction in predictions.values()]),
        scale=golden.logit_scale,
        spread=golden.logit_spread,
        size=golden.logit_spread,  # few texts show no shift of all
        problems=(),
        places=np.concatenate([np.array(text.places) for text in texts]),
        problem=problem,
    )


def _other_labels(
    golden: GoldenTexts,
    predictions: Mapping[int, GoldenPrediction],
    paired: PairedLogits,
    bounds: Tolerance,
) -> list[str]:
    """Return the texts with another prediction, unless it was a near-tie."""
    decided = paired.decided(bounds)
    failures = []
    for row, prediction in predictions.items():
        own = paired.text_ids == row
        turned = bool((decided & own & ~paired.agrees).any())
        misnamed = bool(decided[own].all()) and prediction.label != golden.texts[row].label
        if turned or misnamed:
            moved = float(paired.differences[own].max())
            failures.append(
                f"{_name(row, golden)} is predicted {_shown(prediction.label)}; its logits differ "
                f"by {moved:.3g} at most"
            )
    return failures


def _name(row: int, golden: GoldenTexts) -> str:
    text: GoldenText = golden.texts[row]
    return f"golden text {row + 1} of {len(golden.texts)} (label {_shown(text.label)})"


def _shown(label: str | tuple[str, ...]) -> str:
    return repr(label if isinstance(label, str) else " ".join(label))
