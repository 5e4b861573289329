"""MULTI_LABEL: a text, or a pair of texts, has a set of labels, which may be empty.

A label is in the set where its logit is above 0. A fitted threshold of a label is subtracted from
the model's bias, so that every program that opens it decides alike.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.metrics.calibration import log_sigmoid, on_curve
from bertender.metrics.metric import NO_LABEL
from bertender.problems.problem import Constant, IntArray, Outputs, Tensor, Tensors, TextProblem
from bertender.problems.reading import (
    CellError,
    Columns,
    checked_text,
    shown,
    usable_cell,
    whole_number,
)
from bertender.text.batch import Example

SEPARATOR = re.compile(r"[,;|]")
"""Separators of labels in a text cell."""
YES_OR_NO: Mapping[str, bool] = {"1": True, "true": True, "0": False, "false": False}
"""Cells of a column for one label, in any case."""
NONE = "none"
"""The empty set in words."""

LabelSet = tuple[int, ...]
"""The numbers of the labels of a set, in rising order."""


class MultiLabelClassification(TextProblem[LabelSet]):
    """A text, or a pair of texts, has a set of labels."""

    name = "multi_label_classification"
    summary = "a text, or a pair of texts, has any number of labels"
    columns = Columns(("text",), "labels")
    metrics = ("micro_f1", "macro_f1", "jaccard", "exact_match", "mean_average_precision")
    response_tensors = (
        Tensor("LABEL", "TYPE_STRING", (-1,)),
        Tensor("SCORE", "TYPE_FP32", (-1,)),
        Tensor("LOGITS", "TYPE_FP32", (None,)),
    )
    has_thresholds = True
    calibrated_by = ("platt", "isotonic")
    model_settings: Mapping[str, Any] = {"problem_type": "multi_label_classification"}
    shares_encoder = True

    def label_columns(self, column: str) -> tuple[str, ...]:
        return tuple(each.strip() for each in column.split(","))

    def read_label(self, values: Mapping[str, object], column: str) -> tuple[str, ...]:
        """Return the names of the labels: those in a cell, or of the columns that are true."""
        several = self.label_columns(column)
        if len(several) > 1:
            return tuple(name for name in several if _is_yes(values, name))
        value = usable_cell(values, column)
        if isinstance(value, str):
            value = _listed(value, column)
        elif isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, list | tuple):
            raise CellError(
                column,
                f"{shown(value)} is not a set of labels. Give a list of names, or names by commas; "
                "where each label has a column of 0 and 1, name them all by commas",
            )
        names = [checked_text(each, column) for each in value]
        if repeated := [name for name, count in Counter(names).items() if count > 1]:
            raise CellError(column, f"the label {repeated[0]!r} occurs twice")
        return tuple(names)

    def label_names(self, found: Sequence[Sequence[str]]) -> tuple[str, ...]:
        """Return the labels alphabetically."""
        return tuple(sorted({name for names in found for name in names}))

    def number(self, label: Sequence[str], numbers: Mapping[str, int]) -> LabelSet:
        return tuple(sorted(numbers[name] for name in label))

    def unlabelled(self, example: Example) -> tuple[int, ...]:
        return (NO_LABEL,)

    def by_names(self, target: LabelSet, labels: Sequence[str]) -> tuple[str, ...]:
        return tuple(labels[number] for number in target)

    def labels_of(self, target: LabelSet) -> LabelSet:
        return target

    def constant(
        self, targets: Sequence[LabelSet], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], LabelSet]]:
        """Return the most frequent labels: the number with the best micro F1."""
        counts = Counter(number for target in targets for number in target)
        numbers, hits = [number for number, _ in counts.most_common()], counts.total()
        f1 = [
            2 * sum(counts[number] for number in numbers[:size]) / (size * len(targets) + hits)
            for size in range(1, len(numbers) + 1)
        ]
        answer = tuple(sorted(numbers[: 1 + int(np.argmax(f1))])) if f1 else ()
        return _in_words(answer, labels), lambda example: answer

    def same_everywhere(
        self, predictions: Sequence[LabelSet], targets: Sequence[LabelSet], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        found = set(predictions)
        if len(found) != 1 or len(set(targets)) < 2:
            return ()
        (answer,) = found
        share = sum(target == answer for target in targets) / len(targets)
        return (Constant(_in_words(answer, labels), share, len(targets)),)

    def decode(self, outputs: Outputs, example: Example) -> LabelSet:
        return tuple(np.flatnonzero(outputs.logits[0] > 0).tolist())

    def probabilities(
        self, logits: npt.NDArray[Any], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        wide = np.asarray(logits, dtype=np.float64)
        found = _sigmoid(wide)
        if self.calibration is None:
            return found
        for place, label in enumerate(labels):
            if line := self.calibration.lines.get(label):
                slope, shift = line
                found[:, place] = _sigmoid(slope * wide[:, place] + shift)
            elif points := self.calibration.points.get(label):
                found[:, place] = on_curve(wide[:, place], points)
        return found

    def confidences(
        self, logits: npt.NDArray[Any], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of each row's least probable decision, whether a label is in the
        set, (rows,)."""
        found = self.probabilities(logits, labels)
        return np.asarray(np.where(logits > 0, found, 1 - found).min(axis=1))

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return whether each label is in the set, (rows, labels)."""
        return np.asarray(outputs.logits > 0, dtype=np.int64)

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        return np.asarray(np.abs(outputs.logits))

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return the mean over texts of the KL divergence of all their labels."""
        first, second = (np.asarray(each, dtype=np.float64) for each in (reference, candidate))
        yes = _sigmoid(first)
        found = yes * (log_sigmoid(first) - log_sigmoid(second))
        found += (1 - yes) * (log_sigmoid(-first) - log_sigmoid(-second))
        return float(found.sum(axis=1).mean())

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return (batch, labels of the largest set) tensors, padded with empty values."""
        logits = np.concatenate([each.logits for each in outputs])
        shape = len(logits), max(1, int((logits > 0).sum(axis=1).max()))
        likely = self.probabilities(logits, [label.decode() for label in labels])
        names = np.full(shape, b"", dtype=np.object_)
        scores = np.zeros(shape, dtype=np.float32)
        for row, own in enumerate(logits):
            chosen = np.flatnonzero(own > 0)
            names[row, : len(chosen)] = labels[chosen]
            scores[row, : len(chosen)] = likely[row, chosen]
        return {"LABEL": names, "SCORE": scores, "LOGITS": logits}

    def response_of(
        self, tensors: Tensors, rows: slice, examples: Sequence[Example]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return tensors as long as the largest set of the request."""
        own = {name: array[rows] for name, array in tensors.items()}
        largest = max(1, int((own["LOGITS"] > 0).sum(axis=1).max()))
        parts = {name: np.ascontiguousarray(own[name][:, :largest]) for name in ("LABEL", "SCORE")}
        return {**own, **parts}

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        labels = tuple(label.decode() for label in tensors["LABEL"][row] if label)
        return {
            "label": labels,
            "score": tuple(tensors["SCORE"][row, : len(labels)].tolist()),
            "logits": tuple(tensors["LOGITS"][row].tolist()),
        }


def _listed(cell: str, column: str) -> Any:
    """Return the names in a cell: separated by commas, or the JSON list that `classify` writes."""
    if not cell.strip().startswith("["):
        return [each for each in SEPARATOR.split(cell) if each.strip()]
    try:
        return json.loads(cell)
    except json.JSONDecodeError:  # written as text by pandas
        raise CellError(
            column,
            f"{shown(cell)} is a list as text, and not in JSON. Give names by commas, or lists in "
            "JSONL or Parquet",
        ) from None


def _is_yes(values: Mapping[str, object], column: str) -> bool:
    value = usable_cell(values, column)
    text = whole_number(value).lower()
    if text not in YES_OR_NO:
        raise CellError(column, f"{shown(value)} is not a truth value. Give 0 or 1")
    return YES_OR_NO[text]


def _in_words(numbers: Iterable[int], labels: Sequence[str]) -> str:
    return ", ".join(labels[number] for number in numbers) or NONE


def _sigmoid(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return np.exp(log_sigmoid(logits))


MULTI_LABEL = MultiLabelClassification()
