"""SINGLE_LABEL: a text, or a pair of texts, has one label of several."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt

from bertender.core.config import on_demand
from bertender.problems.problem import (
    FILL_IN,
    CellError,
    Columns,
    Endpoint,
    FloatArray,
    Outputs,
    ProblemType,
    Tensor,
    centred,
    divergence_of_softmax,
    half_the_gap,
    largest,
    shown,
    softmax_of_largest,
    text_of_cell,
    usable_cell,
)
from bertender.text.batch import Batch, Example, Tokenize, keep_text


def _read(values: Mapping[str, object], columns: Columns) -> tuple[Example, str]:
    example = tuple(text_of_cell(values, column) for column in columns.texts)
    return example, _label(values, columns.label)


def _label(values: Mapping[str, object], column: str) -> str:
    value = usable_cell(values, column)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float | Decimal):
        return _integer(value, column)
    if not isinstance(value, str):
        raise CellError(column, f"label {shown(value)} is neither a string nor an integer")
    if value.strip().lower() == "nan":  # a missing value that pandas has turned to a string
        raise CellError(column, f"missing value ({value}). {FILL_IN}")
    return text_of_cell(values, column)


def _integer(value: float | Decimal, column: str) -> str:
    """Return the integer that a table holds as another number: pandas turns a column with a missing
    value to floats, and data warehouses have decimals alone."""
    if not math.isfinite(value) or value != int(value):
        raise CellError(
            column,
            f"label {value} is neither a string nor an integer. If it is the name of a class, "
            "write it as a string; if it is a score, make a few classes of the scores",
        )
    return str(int(value))


def _labels(names: Sequence[str]) -> tuple[str, ...]:
    """Return the labels in order: integers by value, others by alphabet."""
    in_order = sorted(set(names))
    integers = all(label.removeprefix("-").isdecimal() for label in in_order)
    return tuple(sorted(in_order, key=int) if integers else in_order)


def _edge_examples(examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
    one_word = tuple((text.split() or ["a"])[0] for text in examples[0])
    columns = zip(*examples, strict=True)
    return one_word, tuple(_strung(texts, tokens) for texts in columns)


def _strung(texts: Sequence[str], count: int) -> str:
    """Return `count` words of the texts, from the start again at their end."""
    words = [word for text in texts for word in text.split()] or ["a"]
    return " ".join(itertools.islice(itertools.cycle(words), count))  # a word is a token at least


def _outputs(logits: FloatArray, batch: Batch) -> list[Outputs]:
    place = np.zeros(1, dtype=np.int64)
    return [Outputs(row[None], place) for row in logits]


def _arrays(
    outputs: Sequence[Outputs], examples: Sequence[Example], labels: npt.NDArray[np.object_]
) -> dict[str, npt.NDArray[Any]]:
    logits = np.concatenate([each.logits for each in outputs])
    return {
        "LABEL": labels[logits.argmax(axis=1)][:, None],
        "SCORE": softmax_of_largest(logits)[:, None],
        "LOGITS": logits,
    }


def _read_response(
    tensors: Mapping[str, npt.NDArray[Any]], row: int, example: Example
) -> dict[str, Any]:
    return {
        "label": tensors["LABEL"][row, 0].decode(),
        "score": float(tensors["SCORE"][row, 0]),
        "logits": tuple(tensors["LOGITS"][row].tolist()),
    }


def _joined_logits(responses: Sequence[Mapping[str, npt.NDArray[Any]]]) -> FloatArray:
    return np.concatenate([tensors["LOGITS"] for tensors in responses])


def _line(labels: Sequence[str], scores: Sequence[str], example: Example) -> Iterable[str]:
    """Return one line for a text, with all its labels."""
    return [f"{','.join(labels) or '-'}\t{','.join(scores) or '-'}\t{' | '.join(example)}"]


SINGLE_LABEL: ProblemType[int] = ProblemType(
    name="single_label_classification",
    summary="a text, or a pair of texts, has one label",
    open_file=on_demand("bertender.tasks.rows:open_table"),
    takes_pairs=True,
    separator=" | ",
    columns=Columns(("text",), "label"),
    read=_read,
    labels=_labels,
    number=lambda label, numbers: numbers[label],
    by_names=lambda target, labels: labels[target],
    labels_of=lambda target: (target,),
    constant=lambda label, labels, example: label,
    edge_examples=_edge_examples,
    encoder=Tokenize,
    keep_text=keep_text,
    logits_shape=lambda batch, labels: (len(batch), labels),
    outputs=_outputs,
    choose=largest,
    decode=lambda label_ids, places, example: int(label_ids[0]),
    align=lambda targets, batch: np.asarray(targets, dtype=np.int64),
    gather=lambda predictions: np.asarray(predictions, dtype=np.int64),
    margin=half_the_gap,
    probable=centred,
    divergence=divergence_of_softmax,
    metrics=("accuracy", "f1", "matthews"),
    endpoint=Endpoint(
        outputs=(
            Tensor("LABEL", "TYPE_STRING", lambda labels: (1,)),
            Tensor("SCORE", "TYPE_FP32", lambda labels: (1,)),
            Tensor("LOGITS", "TYPE_FP32", lambda labels: (labels,)),
        ),
        to_example=lambda texts: texts,
        to_texts=lambda example: example,
        arrays=_arrays,
        read=_read_response,
        logits=_joined_logits,
        lines=_line,
    ),
    model_class="AutoModelForSequenceClassification",
    tokenizer_settings={},
    model_settings={"problem_type": "single_label_classification"},
    onnx_task="text-classification",
)
