"""SINGLE_LABEL: a text, or a pair of texts, has one label of several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from bertender.problems.problem import (
    FILL_IN,
    CellError,
    Columns,
    FloatArray,
    IntArray,
    Outputs,
    Problem,
    Tensor,
    Tensors,
    shown,
    softmax_of_largest,
    text_of_cell,
    usable_cell,
)
from bertender.text.batch import Batch, Example, Tokenize, keep_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer


class SingleLabelClassification(Problem[int]):
    """A text, or a pair of texts, has one label."""

    name = "single_label_classification"
    summary = "a text, or a pair of texts, has one label"
    columns = Columns(("text",), "label")
    metrics = ("accuracy", "f1", "matthews")
    model_class = "AutoModelForSequenceClassification"
    onnx_task = "text-classification"
    response_tensors = (
        Tensor("LABEL", "TYPE_STRING", (1,)),
        Tensor("SCORE", "TYPE_FP32", (1,)),
        Tensor("LOGITS", "TYPE_FP32", (None,)),
    )
    takes_pairs = True
    tokenizer_settings: Mapping[str, Any] = {}
    model_settings: Mapping[str, Any] = {"problem_type": "single_label_classification"}

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, str]:
        example = tuple(text_of_cell(values, column) for column in columns.texts)
        return example, _label(values, columns.label)

    def label_names(self, found: Sequence[str]) -> tuple[str, ...]:
        """Return the labels in order: integers by value, others by alphabet."""
        in_order = sorted(set(found))
        integers = all(label.removeprefix("-").isdecimal() for label in in_order)
        return tuple(sorted(in_order, key=int) if integers else in_order)

    def number(self, label: str, numbers: Mapping[str, int]) -> int:
        return numbers[label]

    def by_names(self, target: int, labels: Sequence[str]) -> str:
        return labels[target]

    def labels_of(self, target: int) -> tuple[int]:
        return (target,)

    def constant(self, label: int, labels: int, example: Example) -> int:
        return label

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        longest = []
        for texts in zip(*examples, strict=True):
            words = [word for text in texts for word in text.split()] or ["a"]
            longest.append(" ".join(itertools.islice(itertools.cycle(words), tokens)))
        return tuple((text.split() or ["a"])[0] for text in examples[0]), tuple(longest)

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        return Tokenize(tokenizer, max_length)

    def keep_text(self, examples: Sequence[Example]) -> Batch:
        return keep_text(examples)

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int, ...]:
        return len(batch), labels

    def outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        place = np.zeros(1, dtype=np.int64)
        return [Outputs(row[None], place) for row in logits]

    def decode(self, label_ids: IntArray, places: IntArray, example: Example) -> int:
        return int(label_ids[0])

    def align(self, targets: Sequence[int], batch: Batch) -> IntArray:
        return np.asarray(targets, dtype=np.int64)

    def gather(self, predictions: Sequence[int]) -> IntArray:
        return np.asarray(predictions, dtype=np.int64)

    def to_example(self, texts: tuple[str, ...]) -> Example:
        return texts

    def to_texts(self, example: Example) -> tuple[str, ...]:
        return example

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
    ) -> dict[str, npt.NDArray[Any]]:
        logits = np.concatenate([each.logits for each in outputs])
        return {
            "LABEL": labels[logits.argmax(axis=1)][:, None],
            "SCORE": softmax_of_largest(logits)[:, None],
            "LOGITS": logits,
        }

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        return {
            "label": tensors["LABEL"][row, 0].decode(),
            "score": float(tensors["SCORE"][row, 0]),
            "logits": tuple(tensors["LOGITS"][row].tolist()),
        }

    def joined_logits(self, responses: Sequence[Tensors]) -> FloatArray:
        return np.concatenate([tensors["LOGITS"] for tensors in responses])

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return one line for a text, with all its labels."""
        return [f"{','.join(labels) or '-'}\t{','.join(scores) or '-'}\t{' | '.join(example)}"]


def _label(values: Mapping[str, object], column: str) -> str:
    """Return the label of a row as a string, whatever type its file gives it."""
    value = usable_cell(values, column)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        # pandas turns a column with a missing value to floats, and warehouses have decimals alone
        if not math.isfinite(value) or value != int(value):
            raise CellError(
                column,
                f"label {value} is neither a string nor an integer. If it is the name of a class, "
                "write it as a string; if it is a score, make a few classes of the scores",
            )
        return str(int(value))
    if not isinstance(value, str):
        raise CellError(column, f"label {shown(value)} is neither a string nor an integer")
    if value.strip().lower() == "nan":  # a missing value that pandas has turned to a string
        raise CellError(column, f"missing value ({value}). {FILL_IN}")
    return text_of_cell(values, column)


SINGLE_LABEL = SingleLabelClassification()
