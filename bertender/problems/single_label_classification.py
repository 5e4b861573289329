"""SINGLE_LABEL: a text, or a pair of texts, has one of several labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.problems.problem import (
    Constant,
    IntArray,
    Outputs,
    Softmax,
    Tensor,
    Tensors,
    TextProblem,
    most_frequent,
    one_label,
    softmax_of_largest,
)
from bertender.problems.reading import FILL_IN, CellError, shown, text_of_cell, usable_cell
from bertender.text.batch import Example


class SingleLabelClassification(Softmax, TextProblem[int]):
    """A text, or a pair of texts, has one label."""

    name = "single_label_classification"
    summary = "a text, or a pair of texts, has one label"
    metrics: tuple[str, ...] = ("accuracy", "f1", "macro_f1", "matthews")
    response_tensors: tuple[Tensor, ...] = (
        Tensor("LABEL", "TYPE_STRING", (1,)),
        Tensor("SCORE", "TYPE_FP32", (1,)),
        Tensor("LOGITS", "TYPE_FP32", (None,)),
    )
    model_settings: Mapping[str, Any] = {"problem_type": "single_label_classification"}
    shares_encoder = True

    def read_label(self, values: Mapping[str, object], column: str) -> str:
        """Return the label of a row as a string, whatever its type in the file."""
        value = usable_cell(values, column)
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float | Decimal):
            # pandas makes floats of a column with missing values, and warehouses have decimals
            if not math.isfinite(value) or value != int(value):
                raise CellError(
                    column,
                    f"label {value} is neither a string nor an integer. If it is the name of a "
                    "class, write it as a string; if it is a number to predict, add "
                    "--problem-type regression",
                )
            return str(int(value))
        if not isinstance(value, str):
            raise CellError(
                column,
                f"label {shown(value)} is neither a string nor an integer. If a text has several "
                "labels, add --problem-type multi_label_classification",
            )
        if value.strip().lower() == "nan":  # a missing value as written by pandas
            raise CellError(column, f"missing value ({value}). {FILL_IN}")
        return text_of_cell(values, column)

    def label_names(self, found: Sequence[str]) -> tuple[str, ...]:
        """Return the labels in order: integers by value, others alphabetically."""
        in_order = sorted(set(found))
        integers = all(label.removeprefix("-").isdecimal() for label in in_order)
        return tuple(sorted(in_order, key=int) if integers else in_order)

    def number(self, label: str, numbers: Mapping[str, int]) -> int:
        return numbers[label]

    def by_names(self, target: int, labels: Sequence[str]) -> str:
        return labels[target]

    def labels_of(self, target: int) -> tuple[int]:
        return (target,)

    def constant(
        self, targets: Sequence[int], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], int]]:
        """Return the most frequent label."""
        label = most_frequent(targets)
        return labels[label], lambda example: label

    def same_everywhere(
        self, predictions: Sequence[int], targets: Sequence[int], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        return one_label(map(int, predictions), targets, labels)

    def decode(self, outputs: Outputs, example: Example) -> int:
        return int(outputs.logits[0].argmax())

    def gather(self, predictions: Sequence[int]) -> IntArray:
        return np.asarray(predictions, dtype=np.int64)

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        logits = np.concatenate([each.logits for each in outputs])
        return {
            "LABEL": labels[logits.argmax(axis=1)][:, None],
            "SCORE": softmax_of_largest(logits, self.temperature)[:, None],
            "LOGITS": logits,
        }

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        return {
            "label": tensors["LABEL"][row, 0].decode(),
            "score": float(tensors["SCORE"][row, 0]),
            "logits": tuple(tensors["LOGITS"][row].tolist()),
        }


SINGLE_LABEL = SingleLabelClassification()
