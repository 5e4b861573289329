"""Problem: all of one kind of problem that does not need PyTorch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from bertender.text.batch import Batch, Encode, Example, Tokenize, is_blank

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.tasks.rows import Table
    from bertender.text.tokenizer import FileTokenizer

# --- from bertender.problems.problem
# ProblemType: one row describes all of one kind of problem that does not need PyTorch.
#
# The endpoint and its client read these rows as well, so neither PyTorch nor transformers is
# imported here; `bertender.training.heads` has the PyTorch side of each row.

UNNAMED = re.compile(r"LABEL_\d+")

NO_LABEL = -100
"""Instead of a label: the example, or the token, has none."""

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]

Target = TypeVar("Target")


class CellError(Exception):
    """A cell of a data file that cannot be used; the reader of the file adds file and row."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(f"column {column!r}: {problem}")
        self.column = column
        self.problem = problem


class Columns(NamedTuple):
    """Names of the columns of a data file."""

    texts: tuple[str, ...]
    label: str


class Outputs(NamedTuple):
    """The logits of one example, a row for each of its predictions."""

    logits: FloatArray
    """(rows, labels)"""
    places: IntArray
    """(rows,): what each row is a prediction of, such as the number of a word."""


class Tensor(NamedTuple):
    """A tensor of the endpoint's response."""

    name: str
    triton_type: str
    dims: Callable[[int], tuple[int, ...]]
    """number of labels -> its shape after the batch; -1 is of any size"""


def _same_rows(
    tensors: Mapping[str, npt.NDArray[Any]], rows: slice, examples: Sequence[Example]
) -> dict[str, npt.NDArray[Any]]:
    return {name: array[rows] for name, array in tensors.items()}


def softmax(logits: FloatArray) -> FloatArray:
    """Return the probability of each label, (rows, labels) -> (rows, labels)."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(exponents / exponents.sum(axis=1, keepdims=True), dtype=np.float32)


@dataclass(frozen=True)
class Endpoint(Generic[Target]):
    """Tensors of requests and responses besides the logits: texts in, predictions out."""

    outputs: tuple[Tensor, ...]
    to_example: Callable[[tuple[str, ...]], Example]
    """the texts of a row -> what the model reads"""
    to_texts: Callable[[Example], tuple[str, ...]]
    """The same backwards: what a client sends of an example."""
    arrays: Callable[
        [Sequence[Outputs], Sequence[Example], npt.NDArray[np.object_]],
        dict[str, npt.NDArray[Any]],
    ]
    """(outputs, examples, labels as bytes) -> the tensors of a merged batch, by name"""
    read: Callable[[Mapping[str, npt.NDArray[Any]], int, Example], dict[str, Any]]
    """(tensors of a response, row, example) -> label, score and logits of one prediction"""
    logits: Callable[[Sequence[Mapping[str, npt.NDArray[Any]]]], FloatArray]
    """tensors of several responses -> their logits, one array"""
    lines: Callable[[Sequence[str], Sequence[str], Example], Iterable[str]]
    """(labels, scores as they are shown, example) -> the lines that show a prediction"""
    of_request: Callable[
        [Mapping[str, npt.NDArray[Any]], slice, Sequence[Example]], dict[str, npt.NDArray[Any]]
    ] = _same_rows
    """(tensors of a merged batch, rows of a request, its examples) -> the tensors of its response;
    by default these rows of each"""
    probabilities: Callable[[FloatArray], FloatArray] = softmax
    """logits (rows, labels) -> the probability of each label (rows, labels)"""


@dataclass(frozen=True)
class ProblemType(Generic[Target]):
    """A row of PROBLEMS.

    `Target` is what an example is labelled with: the number of a label, or one for each word.
    """

    name: str
    """The problem_type of transformers, or its name for the head's task."""
    summary: str
    open_file: Callable[..., Table]
    """(file, receiver of bad rows) -> an open data file of such examples; what reads files is
    imported when it is called, so that an endpoint loads none of it"""
    takes_pairs: bool
    """An example may have a second text."""
    separator: str
    """Between the strings of an example where one is shown."""
    columns: Columns
    """Of data files, where the user names no others."""
    read: Callable[[Mapping[str, object], Columns], tuple[Example, Any]]
    """(cells of a row, columns) -> the example, and its label or labels as they stand there.

    Raises CellError."""
    labels: Callable[[Sequence[Any]], tuple[str, ...]]
    """the labels of all training rows -> the names of the task, in the order of the logits"""
    number: Callable[[Any, Mapping[str, int]], Target]
    """(labels of a row, number of each name) -> target; KeyError for a name that is not known"""
    by_names: Callable[[Target, Sequence[str]], Any]
    """(target, names of the labels) -> the same by names"""
    labels_of: Callable[[Target], Sequence[int]]
    """target -> the numbers of its labels"""
    constant: Callable[[int, int, Example], Target]
    """(label, number of labels, example) -> that label wherever there is a prediction to make"""
    edge_examples: Callable[[Sequence[Example], int], tuple[Example, Example]]
    """(examples, tokens) -> the shortest example that can be, and one of more tokens than that"""
    encoder: Callable[[PreTrainedTokenizerBase | FileTokenizer, int | None], Tokenize]
    """(tokenizer, longest input) -> how texts become token arrays; in an endpoint, the tokenizer is
    a FileTokenizer, which is called alike"""
    keep_text: Encode
    """How examples become a batch for what reads the texts itself, such as an endpoint."""
    logits_shape: Callable[[Batch, int], tuple[int, ...]]
    """(batch, labels) -> the shape that the logits of the batch must have"""
    outputs: Callable[[FloatArray, Batch], list[Outputs]]
    """(logits of a batch, the batch) -> the outputs of each example"""
    choose: Callable[[npt.NDArray[Any]], IntArray]
    """logits (rows, labels) -> the number of the predicted label (rows,), or 0 or 1 for each label
    (rows, labels)"""
    decode: Callable[[IntArray, IntArray, Example], Target]
    """(what `choose` returns, places (rows,), example) -> the prediction"""
    align: Callable[[Sequence[Target], Batch], IntArray]
    """(targets, batch) -> the labels next to the logits of the batch; NO_LABEL where none is"""
    gather: Callable[[Sequence[Target]], Any]
    """Predictions of all examples as one value, such as an array."""
    margin: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
    """logits (rows, labels) -> how far each logit must move, at least, to turn the prediction
    (rows,)"""
    probable: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]
    """logits (rows, labels) -> the same without what changes no probability"""
    divergence: Callable[[npt.NDArray[Any], npt.NDArray[Any]], float]
    """(logits of a model, those of another), both (rows, labels) -> the mean KL divergence of the
    second from the first"""
    metrics: tuple[str, ...]
    """Rows of METRICS, the default first."""
    endpoint: Endpoint[Target]
    model_class: str
    """The class of transformers that loads a model with this head."""
    tokenizer_settings: Mapping[str, Any]
    """Settings of the tokenizer that such a model wants."""
    model_settings: Mapping[str, Any]
    """Settings of the model's config.json, by which transformers knows the problem type."""
    onnx_task: str
    """The exporter's name for it."""


def are_unnamed(labels: Sequence[str]) -> bool:
    """Return whether nobody has named some labels: they are those that transformers makes."""
    return all(UNNAMED.fullmatch(label) for label in labels)


def largest(logits: npt.NDArray[Any]) -> IntArray:
    """Return the number of the largest logit of each row, (rows, labels) -> (rows,)."""
    return np.asarray(logits.argmax(axis=1), dtype=np.int64)


def centred(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return logits (rows, labels) less the mean of each row, which no softmax reads."""
    return np.asarray(logits - logits.mean(axis=1, keepdims=True))


def divergence_of_softmax(reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
    """Return the mean KL divergence of a candidate's distributions from a reference's; both are
    logits (rows, labels)."""
    first, second = (_log_softmax(each.astype(np.float64)) for each in (reference, candidate))
    return float((np.exp(first) * (first - second)).sum(axis=1).mean())


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def half_the_gap(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return half the distance of the two largest logits of each row, (rows, labels) -> (rows,):
    they swap where both move so far."""
    ordered = np.sort(logits, axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2]) / 2


def softmax_of_largest(logits: FloatArray) -> FloatArray:
    """Return the probability of each row's prediction, (rows, labels) -> (rows,)."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(1.0 / exponents.sum(axis=1), dtype=np.float32)  # the largest is exp(0)


# --- from bertender.problems.cells
# Cells of data files: what is text, and what is missing.

FILL_IN = "Fill it in, or leave the row out"
NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""NUL, and halves of surrogate pairs, which JSON can hold and no tokenizer takes."""

SHOWN_CHARACTERS = 60
"""Of a value in a message: a cell may hold a list of a thousand numbers."""


def text_of_cell(values: Mapping[str, object], column: str) -> str:
    """Return the text of a cell without the white space around it.

    Raises:
        CellError: it is missing, empty, nothing that can be seen, or not text.
    """
    text = checked_text(usable_cell(values, column), column)
    if is_blank(text):
        raise CellError(column, f"{shown(text)} has no character that can be seen. {FILL_IN}")
    return text


def checked_text(value: object, column: str) -> str:
    """Return a value without the white space around it, or raise CellError where it is not text."""
    if not isinstance(value, str):
        raise CellError(column, f"{shown(value)} is not text. Give a string")
    if NOT_TEXT.search(value):
        raise CellError(column, "characters that are not text (is it UTF-16, or binary?)")
    text = value.strip()
    if not text:
        raise CellError(column, f"empty. {FILL_IN}")
    return text


def usable_cell(values: Mapping[str, object], column: str) -> object:
    """Return a cell, which must be there and hold something.

    Raises:
        CellError: it does not.
    """
    if column not in values:
        raise CellError(column, f"missing; this row has {', '.join(map(repr, values))}")
    value = values[column]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise CellError(column, f"missing value ({value}). {FILL_IN}")
    return value


def shown(value: object) -> str:
    """Return a value as a message shows it: a long one is cut."""
    whole = repr(value)
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}..."
