"""REGRESSION: a text, or a pair of texts, has a number, such as a similarity or a rating.

A model's output is the number itself, in the unit of the data, so that every program reads the same
number; `bertender.training.heads` describes how numbers of any size are learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.problems.problem import Constant, Outputs, Tensor, Tensors, TextProblem
from bertender.problems.reading import FILL_IN, CellError, shown, usable_cell
from bertender.text.batch import Example

SAME = 1e-3
"""Share of the true numbers' standard deviation below which predictions count as constant."""
LARGEST = 1e30
"""Largest size of a number: models compute in float32, which ends at 3e38, and sum over texts."""
LEAST_SPREAD = 1e-6
"""Share of the largest number: a smaller spread over texts is rounding."""
LEAST_SCALE = 1e-2
"""Share of the largest number, so that a bound of 1e-5 scales is above float32 rounding."""


class Regression(TextProblem[float]):
    """A text, or a pair of texts, has a number."""

    name = "regression"
    summary = "a text, or a pair of texts, has a number"
    metrics = ("pearson", "spearman", "mean_absolute_error")
    response_tensors = (Tensor("NUMBER", "TYPE_FP32", (1,)),)
    logits_tensor = "NUMBER"
    names_labels = False
    shares_encoder = True
    output = "number"
    model_settings: Mapping[str, Any] = {"problem_type": "regression"}

    def read_label(self, values: Mapping[str, object], column: str) -> float:
        value = usable_cell(values, column)
        if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
            raise CellError(column, f"{shown(value)} is not a number. Give one, such as 3.5")
        try:
            number = float(value)
        except ValueError:
            comma = " with a point before its decimals" if "," in str(value) else ""
            raise CellError(column, f"{shown(value)} is not a number. Give one{comma}") from None
        if not math.isfinite(number):
            raise CellError(column, f"{shown(value)} is not a finite number. {FILL_IN}")
        if abs(number) > LARGEST:
            raise CellError(
                column, f"{shown(value)} is beyond {LARGEST:g}. Give the numbers in a larger unit"
            )
        return number

    def label_names(self, found: Sequence[float]) -> tuple[str, ...]:
        """Return the name of the one output."""
        return ("number",)

    def unlabelled(self, example: Example) -> float:
        return math.nan

    def constant(
        self, targets: Sequence[float], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], float]]:
        """Return the mean, which has the smallest squared error."""
        mean = float(np.mean(targets))
        return f"{mean:.4g}", lambda example: mean

    def same_everywhere(
        self, predictions: Sequence[float], targets: Sequence[float], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        spread = float(np.std(targets))
        if len(predictions) < 2 or not spread or np.ptp(predictions) > SAME * spread:
            return ()
        answer = float(np.mean(predictions))
        share = float(np.mean(np.abs(np.subtract(targets, answer)) <= SAME * spread))
        truth = f"the {len(targets)} true numbers are {min(targets):.4g} to {max(targets):.4g}"
        return (Constant(f"{answer:.4g}", share, len(targets), truth=truth),)

    def decode(self, outputs: Outputs, example: Example) -> float:
        return float(outputs.logits[0, 0])

    def gather(self, predictions: Sequence[float]) -> npt.NDArray[np.float64]:
        return np.asarray(predictions, dtype=np.float64)

    def scale(self, logits: npt.NDArray[np.float64]) -> float:
        """Return the largest distance of a number from the mean: a share of numbers about 1000
        would be many of their spreads."""
        if not logits.size:
            return 0.0
        apart = float(np.abs(logits - logits.mean()).max())
        return max(apart, LEAST_SCALE * float(np.abs(logits).max()))

    def size_and_spread(self, logits: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return the standard deviation over texts twice: numbers have no ties."""
        spread = max(float(logits.std()), LEAST_SPREAD * float(np.abs(logits).max()))
        return spread, spread

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        return {"NUMBER": np.concatenate([each.logits for each in outputs])}

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return one line for a text, with its number."""
        return [f"{labels[0]}\t{' | '.join(example)}"]

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        number = float(tensors["NUMBER"][row, 0])
        return {"label": number, "score": None, "logits": (number,)}


REGRESSION = Regression()
