"""Golden texts of a graph that has passed the gate: which ones, and its outputs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bertender.core.golden import GoldenText, GoldenTexts
from bertender.measure.parity import Parity, parity_sample
from bertender.models.predictor import Classifier
from bertender.text.example import Example

__all__ = ["MOST_BYTES", "Conditions", "golden_examples", "golden_texts"]

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
