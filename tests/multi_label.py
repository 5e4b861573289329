"""What a package of its own may add: a problem type, any number of labels a text, with its metric.

The endpoint imports this file, so it loads no PyTorch; the head is in tests/multi_label_head.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.metrics.resampling import LabelSet
from bertender.metrics.scores import METRICS
from bertender.problems.problem import (
    CellError,
    Columns,
    Outputs,
    ProblemType,
    Tensor,
    checked_text,
    divergence_of_softmax,
    text_of_cell,
    usable_cell,
)
from bertender.problems.single_label_classification import SINGLE_LABEL
from bertender.text.batch import Example

Names = tuple[str, ...]
Targets = tuple[int, ...]
"""0 or 1 for each label of the task."""


def _read(values: Mapping[str, object], columns: Columns) -> tuple[Example, Names]:
    cell = usable_cell(values, columns.label)
    if not isinstance(cell, list):
        raise CellError(columns.label, f"{cell!r} is not a list. Give a list of strings")
    names = tuple(checked_text(name, columns.label) for name in cell)
    return tuple(text_of_cell(values, column) for column in columns.texts), names


def _number(names: Names, numbers: Mapping[str, int]) -> Targets:
    own = {numbers[name] for name in names}
    return tuple(int(number in own) for number in range(len(numbers)))


def _by_names(target: Targets, labels: Sequence[str]) -> Names:
    return tuple(label for label, has in zip(labels, target, strict=True) if has)


def _choose(logits: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.asarray(logits > 0, dtype=np.int64)


def _two_classes(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return each label's choice between no and yes as a softmax's, (rows * labels, 2)."""
    flat = logits.astype(np.float64).reshape(-1)
    return np.stack([np.zeros_like(flat), flat], axis=1)


def _arrays(
    outputs: Sequence[Outputs], examples: Sequence[Example], labels: npt.NDArray[np.object_]
) -> dict[str, npt.NDArray[Any]]:
    logits = np.concatenate([each.logits for each in outputs])
    return {
        "LABEL": np.where(logits > 0, labels, b""),
        "SCORE": _sigmoid(logits),
        "LOGITS": logits,
    }


def _sigmoid(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return (1 / (1 + np.exp(-logits))).astype(np.float32)


def _read_response(
    tensors: Mapping[str, npt.NDArray[Any]], row: int, example: Example
) -> dict[str, Any]:
    names = tensors["LABEL"][row]
    return {
        "label": tuple(name.decode() for name in names if name),
        "score": tuple(tensors["SCORE"][row][names != b""].tolist()),
        "logits": tuple(tensors["LOGITS"][row].tolist()),
    }


MULTI_LABEL: ProblemType[Targets] = replace(
    SINGLE_LABEL,
    name="multi_label_classification",
    summary="a text has any number of labels",
    columns=Columns(("text",), "labels"),
    read=_read,
    labels=lambda found: tuple(sorted({name for names in found for name in names})),
    number=_number,
    by_names=_by_names,
    labels_of=lambda target: np.flatnonzero(target).tolist(),
    constant=lambda label, labels, example: tuple(int(label == each) for each in range(labels)),
    choose=_choose,
    decode=lambda chosen, places, example: tuple(chosen[0].tolist()),
    align=lambda targets, batch: np.asarray(targets, dtype=np.int64),
    gather=tuple,
    margin=lambda logits: np.asarray(np.abs(logits).min(axis=1)),
    probable=lambda logits: logits,
    divergence=lambda first, second: divergence_of_softmax(
        _two_classes(first), _two_classes(second)
    ),
    metrics=("exact_match",),
    endpoint=replace(
        SINGLE_LABEL.endpoint,
        outputs=(
            Tensor("LABEL", "TYPE_STRING", lambda labels: (labels,)),
            Tensor("SCORE", "TYPE_FP32", lambda labels: (labels,)),
            Tensor("LOGITS", "TYPE_FP32", lambda labels: (labels,)),
        ),
        arrays=_arrays,
        read=_read_response,
        probabilities=_sigmoid,
    ),
    model_settings={"problem_type": "multi_label_classification"},
)


class _ExactMatch:
    """The share of texts all of whose labels are right."""

    def score(
        self, label_ids: Sequence[Any], predictions: Sequence[Any], known: LabelSet, seed: int
    ) -> tuple[float, float, float]:
        truth, right = _right(label_ids, predictions)
        return METRICS["accuracy"].score(truth, right, LabelSet(2), seed)

    def resampled(
        self, label_ids: Sequence[Any], predictions: Sequence[Any], known: LabelSet, seed: int
    ) -> tuple[list[float], list[npt.NDArray[np.float64]]]:
        rights = [_right(label_ids, each)[1] for each in predictions]
        truth = [1] * len(label_ids)
        return METRICS["accuracy"].resampled(truth, rights, LabelSet(2), seed)


def _right(label_ids: Sequence[Any], predictions: Sequence[Any]) -> tuple[list[int], list[int]]:
    pairs = zip(label_ids, predictions, strict=True)
    return [1] * len(label_ids), [int(tuple(own) == tuple(other)) for own, other in pairs]


EXACT_MATCH = _ExactMatch()
