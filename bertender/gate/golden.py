"""Golden texts: examples stored in an artifact, to check that a model elsewhere predicts the same.

The check uses the arithmetic of the parity gate and the tolerance that the artifact names:
decisions that are not near-ties must be equal, and logits must be within TOLERANCES. The gate
judges the better end of an interval, since its texts are a sample; here the same model repeats the
same texts, so the figures themselves are judged. This module does not load PyTorch, and its
messages contain no text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from bertender.core.artifact import GoldenText, GoldenTexts, Label
from bertender.core.config import Record
from bertender.gate.figures import PairedLogits
from bertender.gate.judge import (
    LARGEST,
    TOLERANCES,
    Parity,
    Tolerance,
    decided_by,
    parity_sample,
)
from bertender.models.classifier import Classifier
from bertender.problems.problem import Outputs, Problem
from bertender.text.batch import Example

MOST_BYTES = 8 * 1024
"""Largest text: an artifact should stay small, and an endpoint refuses long texts."""
DIGITS = 8
"""Significant digits of a logit: float32 has no more."""


def golden_examples(examples: Sequence[Example], count: int, seed: int) -> tuple[Example, ...]:
    """Return at most `count` examples that are not too long, including the shortest and longest."""
    if not count:
        return ()
    short = [each for each in examples if sum(len(text.encode()) for text in each) <= MOST_BYTES]
    return parity_sample(short, count, seed)


def golden_texts(
    classifier: Classifier,
    examples: Sequence[Example],
    *,
    runtime: str,
    tolerance: str,
    parity: Parity,
) -> GoldenTexts:
    """Return examples of the task, each with a classifier's outputs for it alone.

    Args:
        classifier: classifier that has passed the gate.
        examples: examples from `golden_examples`.
        runtime: row of RUNTIMES that runs the classifier.
        tolerance: row of TOLERANCES for other runtimes of the same graph.
        parity: parity of the classifier with its source.
    """
    problem, texts = classifier.problem, []
    for example in examples:
        batch = classifier.encode([example])
        (outputs,) = classifier.outputs_of(batch)
        decoded = problem.decode(outputs, example)
        rows = outputs.logits.tolist()
        golden = GoldenText(
            example=example,
            label=problem.by_names(decoded, classifier.labels),
            logits=tuple(tuple(float(f"{logit:.{DIGITS}g}") for logit in row) for row in rows),
            places=tuple(outputs.places.tolist()),
            tokens=int(batch.arrays["attention_mask"].sum()),
        )
        texts.append(golden)
    return GoldenTexts(
        runtime=runtime,
        tolerance=tolerance,
        logit_scale=parity.logit_scale or 0.0,
        logit_spread=parity.logit_spread or 0.0,
        heads=parity.heads,
        texts=tuple(texts),
    )


@dataclass(frozen=True)
class GoldenPrediction:
    """A model's prediction for a golden text."""

    label: Label | dict[str, Label]
    logits: npt.NDArray[np.float64]
    """(rows, labels), at the positions of the golden text"""


class GoldenCheck(Record):
    """Result of a check."""

    texts: int = Field(description="that were compared")
    left_out: int = Field(description="golden texts that were not")
    max_abs_difference: float | None = Field(description="of logits; None where none compare")
    failures: tuple[str, ...] = Field(
        description="what is wrong; empty where the predictions agree"
    )


def check_golden(
    golden: GoldenTexts,
    predictions: Mapping[int, GoldenPrediction],
    problem: Problem[Any],
    labels: Sequence[str],
) -> GoldenCheck:
    """Compare predictions with those of golden texts.

    Args:
        golden: golden texts of an artifact.
        predictions: index of a golden text -> its prediction; texts without one are left out.
        problem: the artifact's problem type.
        labels: its labels.
    """
    counts = {"texts": len(predictions), "left_out": len(golden.texts) - len(predictions)}
    if failures := tuple(_wrong_shapes(golden, predictions)):
        return GoldenCheck(**counts, max_abs_difference=None, failures=failures)
    texts = [golden.texts[row] for row in predictions]
    rows = [len(prediction.logits) for prediction in predictions.values()]
    paired = PairedLogits(
        texts=(),
        cases=(),
        text_ids=np.repeat([*predictions], rows),
        case_ids=np.zeros(sum(rows), dtype=np.int64),
        expected=np.concatenate([np.array(text.logits) for text in texts]),
        actual=np.concatenate([prediction.logits for prediction in predictions.values()]),
        scale=golden.logit_scale,
        spread=golden.logit_spread,
        size=golden.logit_spread,  # a few texts show no common shift
        problems=(),
        places=np.concatenate([np.array(text.places) for text in texts]),
        replies=np.repeat(np.arange(len(rows)), rows),
        problem=problem,
    )
    bounds = TOLERANCES[golden.tolerance]
    heads = _by_head(golden, paired)
    return GoldenCheck(
        **counts,
        max_abs_difference=float(paired.differences.max(initial=0.0)),
        failures=(
            *_other_labels(golden, predictions, paired, heads, bounds, labels),
            *(
                f"{head}: {failure}" if head else failure
                for head, own in heads.items()
                for failure in _broken_bounds(golden, own, bounds)
            ),
        ),
    )


def _by_head(golden: GoldenTexts, paired: PairedLogits) -> Mapping[str, PairedLogits]:
    """Return the outputs of each head in its units of the gate: numbers may be a thousand times as
    large as the logits beside them."""
    heads = {}
    for head, own in paired.by_head().items():
        scale, spread = golden.heads.get(head, (paired.scale, paired.spread))
        heads[head] = replace(own, scale=scale, spread=spread, size=spread)
    return heads


def _wrong_shapes(
    golden: GoldenTexts, predictions: Mapping[int, GoldenPrediction]
) -> Iterator[str]:
    for row, prediction in predictions.items():
        wanted = (len(golden.texts[row].places), len(golden.texts[row].logits[0]))
        shape = prediction.logits.shape
        if shape != wanted or not np.isfinite(prediction.logits).all():
            found = shape if shape != wanted else "not finite"
            yield f"{_name(row, golden)}: its outputs (rows, labels) are {found}, must be {wanted}"


def _other_labels(
    golden: GoldenTexts,
    predictions: Mapping[int, GoldenPrediction],
    paired: PairedLogits,
    heads: Mapping[str, PairedLogits],
    bounds: Tolerance,
    labels: Sequence[str],
) -> Iterator[str]:
    """Yield the texts with a decision that differs and was not a near-tie, or with a label that is
    not that of the prediction's own logits: a ranking or a number may differ within bounds."""
    problem = paired.problem
    turned = {
        row
        for own in heads.values()
        for row in own.text_ids[(decided_by(own, bounds) & ~own.agrees).any(axis=1)].tolist()
    }
    for row, prediction in predictions.items():
        text = golden.texts[row]
        outputs = Outputs(prediction.logits, np.array(text.places))
        meant = problem.by_names(problem.decode(outputs, text.example), labels)
        predicted = f"{_name(row, golden)} is predicted {_shown(prediction.label)}"
        if row in turned:
            moved = float(paired.differences[paired.text_ids == row].max())
            yield f"{predicted}; its {problem.output}s differ by {moved:.3g} at most"
        elif prediction.label != meant:
            yield f"{predicted}, which is not what its own {problem.output}s say"


def _broken_bounds(golden: GoldenTexts, paired: PairedLogits, bounds: Tolerance) -> Iterator[str]:
    """Yield measured and allowed values for the bounds that a few texts can break."""
    shares = paired.differences.max(axis=1) / (paired.scale or 1.0)
    output, relative = paired.problem.output, paired.relative_differences
    spread = f"the spread of {output}s over texts"
    for name, allowed, distances, value, unit in (
        ("max_abs", bounds.max_abs, shares, shares.max(), f"the {LARGEST[output]}"),
        ("max_median", bounds.max_median, relative, np.median(relative), spread),
        ("max_p95", bounds.max_p95, relative, np.quantile(relative, 0.95), spread),
    ):
        if allowed is not None and value > allowed:
            worst = _name(int(paired.text_ids[int(distances.argmax())]), golden)
            yield (
                f"{name} of the {output}s' differences is {value:.3g} times {unit}, allowed at "
                f"most {allowed:g}; the furthest is {worst}, by {float(distances.max()):.3g}"
            )


def _name(row: int, golden: GoldenTexts) -> str:
    text: GoldenText = golden.texts[row]
    return f"golden text {row + 1} of {len(golden.texts)} (label {_shown(text.label)})"


def _shown(label: Label | dict[str, Label]) -> str:
    if isinstance(label, dict):
        return ", ".join(f"{name}: {_shown(own)}" for name, own in label.items())
    return repr(" ".join(label) if isinstance(label, tuple) else label)
