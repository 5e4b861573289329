"""Problem: all of one kind of problem that does not need PyTorch.

An endpoint and its clients read problems as well, so neither PyTorch nor transformers is imported
here; `bertender.training.heads` has the PyTorch side of each.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, Self, TypeVar

import numpy as np
import numpy.typing as npt

from bertender.metrics.by_label import Parts
from bertender.metrics.targets import NO_LABEL
from bertender.text.batch import Batch, Example, Tokenize, is_blank

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

UNNAMED = re.compile(r"LABEL_\d+")
FILL_IN = "Fill it in, or leave the row out"
NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""NUL, and halves of surrogate pairs, which JSON can hold and no tokenizer takes."""
LEAST_SPREAD = 0.05
"""Share of the root mean square of the centred logits."""
LEAST_SPREAD_LOGITS = 0.05
"""In logits. Where two move in opposite directions, each by a fifth of it, as the median text of 8
bits may, a probability changes by half a hundredth at most: p (1 - p) times the 0.02 by which their
distance changes."""
SHOWN_CHARACTERS = 60
"""Of a value in a message: a cell may hold a list of a thousand numbers."""

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Tensors = Mapping[str, npt.NDArray[Any]]

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


class WordParts(NamedTuple):
    """What a model outputs for later parts of words, a row for each; see `word_parts`."""

    logits: FloatArray
    """(rows, labels)"""
    words: IntArray
    """(rows,): the number of the word."""
    offsets: IntArray
    """(rows,): characters of the word before the part."""


class Outputs(NamedTuple):
    """What a model outputs for one example, a row for each of its predictions."""

    logits: npt.NDArray[Any]
    """(rows, labels); (1, 1) for a number, which is not a logit"""
    places: IntArray
    """(rows,): what each row is a prediction of, such as the number of a word."""
    parts: WordParts | None = None
    """Of words that are read in parts."""


class Constant(NamedTuple):
    """One answer to all texts."""

    answer: str
    share: float
    """Of the true labels that it is."""
    labels: int
    """True labels: one a text, or one a word where words have labels."""
    head: str = ""
    """That gives it; empty where a model has one."""


class Tensor(NamedTuple):
    """A tensor of an endpoint's response."""

    name: str
    triton_type: str
    sizes: tuple[int | None, ...]
    """Its shape after the batch: -1 is of any size, None as many as there are labels."""

    def dims(self, labels: int) -> tuple[int, ...]:
        """Return its shape after the batch, for so many labels."""
        return tuple(labels if size is None else size for size in self.sizes)


class Problem(ABC, Generic[Target]):
    """A kind of problem: how its examples are read, encoded, decoded, scored and served.

    `Target` is what an example is labelled with: the number of a label, one for each word, a truth
    for each label, or a number. A row of logits is a prediction: one an example, or one a word.
    What a row decides may be equal to what another one does, or not: its decisions. A softmax has
    one a row, a set of labels one for each label, and a number none. The methods with a body here
    are those of a softmax over labels.
    """

    name: str
    """The problem_type of transformers, or its name for the head's task."""
    summary: str
    columns: Columns
    """Of data files, where the user names no others."""
    metrics: tuple[str, ...]
    """Rows of METRICS, the default first."""
    model_class: str
    """The class of transformers that loads a model with this head."""
    column_outputs: tuple[str, ...] = ()
    """Outputs of a graph besides the logits: a column of them each, by the names that other
    libraries read."""
    response_tensors: tuple[Tensor, ...]
    """The tensors of an endpoint's response."""
    takes_pairs: bool = False
    """An example may have a second text."""
    takes_windows: bool = False
    """A text that is longer than the model's input may be read in windows."""
    per_token: bool = False
    """A model has logits for each token of an example."""
    labels_words: bool = False
    """An example is a sentence of words, each with a label; its files are read as such."""
    has_thresholds: bool = False
    """A threshold of each label is fitted once a model is trained."""
    reads_pairs: bool = False
    """Its data are pairs of texts, whose columns have usual names, and may have no labels."""
    gives_vectors: bool = False
    """A row of its outputs is a vector, whose width each model has its own."""
    names_labels: bool = True
    """Its data name labels; numbers and answers name none."""
    output: str = "logit"
    """What a message calls one of a model's outputs."""
    window: int | None = None
    """Tokens of a window, by default; None where an example has none, and longer texts are cut."""
    decides_within: Literal["row", "example", "texts"] = "row"
    """What has decisions: each row of outputs alone; the rows of an example together; or each row
    among those of other texts, all of which `decisions` must be given."""
    places_are_labels: bool = False
    """Labels are the numbers of choices, which another text has in each example. A model has one
    score, for any number of them."""
    takes_list: bool = False
    """An example ends in any number of texts, which an endpoint takes as a list."""
    shares_encoder: bool = False
    """It may be one of several heads on one encoder, all asked of the same text."""
    heads: Mapping[str, Problem[Any]] = {}
    """The kind of each head by its name, where a model has several."""
    separator: str = " | "
    """Between the strings of an example where one is shown."""
    tokenizer_settings: Mapping[str, Any]
    """Settings of the tokenizer that such a model wants."""
    model_settings: Mapping[str, Any]
    """Settings of the model's config.json, by which transformers knows the kind of problem."""

    @property
    def keeps_vocabulary(self) -> bool:
        """Whether a model's vocabulary stays whole unless its size is set.

        Tags and answers are learned token by token, and vectors are made to be compared with those
        of other texts than the task's.
        """
        return self.per_token or self.gives_vectors

    def of_labels(self, labels: Sequence[str]) -> Self:
        """Return the kind of problem of a model with these labels, in the order of its logits."""
        return self

    def settings_to_learn(self, labels: Sequence[str]) -> Mapping[str, Any]:
        """Return the settings of the tokenizer of a model that is about to learn such labels."""
        return self.tokenizer_settings

    @abstractmethod
    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Any]:
        """Return the example of a row of a file, and its label or labels as they stand there.

        Raises:
            CellError: a cell cannot be used.
        """

    def usual_columns(self, there: Sequence[str]) -> Columns:
        """Return the columns to read where the user names none, given those of a file."""
        return self.columns

    def more_columns(self, named: str | None, there: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of more texts, given what the user has named and a file's columns."""
        return () if named is None else (named,)

    def text_names(self, columns: Columns, example: Example) -> tuple[str, ...]:
        """Return a name for each text of an example, given the columns that it was read from."""
        return columns.texts

    def read_texts(self, values: Mapping[str, object], columns: Sequence[str]) -> Example:
        """Return the texts of a row of a file without labels.

        Raises:
            CellError: a cell cannot be used.
        """
        return tuple(self.text_of_cell(values, column) for column in columns)

    def told_apart_by(self, example: Example) -> Example:
        """Return the texts by which examples are set apart: those with equal ones stay together."""
        return example

    def part_of(self, values: Mapping[str, object], columns: Sequence[str]) -> str | None:
        """Return what rows of a file have in common that are one example together; None for a row
        that is one alone."""
        return None

    def whole(self, parts: Sequence[tuple[Example, Any]], columns: Columns) -> tuple[Example, Any]:
        """Return the example, and its label, of the rows that `part_of` says belong together.

        Raises:
            CellError: they cannot be one.
        """
        (own,) = parts
        return own

    def to_learn(self, example: Example, target: Target) -> tuple[Example, Target]:
        """Return what is learned from of an example of the training file."""
        return example, target

    def check_beside(self, example: Example, first: Example, columns: Columns) -> None:
        """Raise CellError where an example cannot be one of a task with this first one."""

    def label_columns(self, column: str) -> tuple[str, ...]:
        """Return the columns that have the labels, given what the user has named."""
        return (column,)

    @abstractmethod
    def label_names(self, found: Sequence[Any]) -> tuple[str, ...]:
        """Return the labels of a task, in the order of the logits, given those of all its rows."""

    def usual_metric(self, labels: Sequence[str], targets: Sequence[Target]) -> str:
        """Return the score of a task with these labels and targets, where none is asked for."""
        return self.metrics[0]

    def metrics_of(self, targets: Sequence[Target]) -> tuple[str, ...]:
        """Return the scores that say something of these targets."""
        return self.metrics

    def output_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the names of a model's outputs, given the labels of its task."""
        return tuple(labels)

    @abstractmethod
    def number(self, label: Any, numbers: Mapping[str, int]) -> Target:
        """Return the target of a row's label; KeyError for a name that `numbers` lacks."""

    def unlabelled(self, example: Example) -> Any:
        """Return the target of an example that nobody has labelled."""
        return NO_LABEL

    @abstractmethod
    def by_names(self, target: Target, labels: Sequence[str]) -> Any:
        """Return a target by the names of the labels."""

    @abstractmethod
    def labels_of(self, target: Target) -> Sequence[int]:
        """Return the numbers of a target's labels."""

    def parts(self, target: Target, labels: Sequence[str]) -> Parts:
        """Return what an answer consists of, so that each label has scores of its own."""
        return {(labels[number], None) for number in self.labels_of(target)}

    def where_labelled(self, prediction: Target, target: Target) -> Target:
        """Return a prediction, without labels of those of several heads that the target lacks."""
        return prediction

    def scored_labels(self, labels: Sequence[str]) -> Sequence[str]:
        """Return the labels that have scores of their own, whether or not they occur."""
        return labels if self.names_labels else ()

    def asked(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        """Return what an endpoint is asked about some examples, one after another."""
        return tuple(examples)

    def asked_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the texts that an endpoint is asked about at once."""
        return tuple(columns)

    @abstractmethod
    def constant(
        self, targets: Sequence[Target], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], Target]]:
        """Return the best answer that reads no text, given the targets of training examples: its
        name, and a function that gives it to an example."""

    @abstractmethod
    def same_everywhere(
        self, predictions: Sequence[Target], targets: Sequence[Target], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        """Return the one answer of all predictions, where the targets are several; of several
        heads, that of each head that has one."""

    @abstractmethod
    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        """Return the shortest example that can be, and one of more than so many tokens."""

    @abstractmethod
    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        """Return what turns examples into token arrays."""

    def reading(self, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Self:
        """Return the problem of a model whose texts this tokenizer reads."""
        return self

    @abstractmethod
    def keep_text(self, examples: Sequence[Example]) -> Batch:
        """Return examples as a batch for what reads the texts itself, such as an endpoint."""

    @abstractmethod
    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        """Return the shape that the logits of a batch's rows must have; None is of any size."""

    @abstractmethod
    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the outputs of each row of a batch, which may run apart from others of its
        example."""

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        """Return the outputs of an example, given those of its rows: by default it has one."""
        (own,) = rows
        return own

    def outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the outputs of each example of a batch."""
        return [self.joined(own) for own in batch.by_example(self.row_outputs(logits, batch))]

    @abstractmethod
    def decode(self, outputs: Outputs, example: Example) -> Target:
        """Return the prediction for an example."""

    def gather(self, predictions: Sequence[Target]) -> Any:
        """Return the predictions of all examples as one value, such as an array."""
        return tuple(predictions)

    def with_fitted(self, values: Mapping[str, float]) -> Self:
        """Return the kind of problem with what was fitted on data besides the weights, by name."""
        return self

    def unfitted(self, targets: Sequence[Target]) -> Mapping[str, float]:
        """Return what `with_fitted` takes before anything is fitted, given targets of the task."""
        return {}

    def fit(
        self, outputs: Sequence[Outputs], examples: Sequence[Example], targets: Sequence[Target]
    ) -> Mapping[str, float]:
        """Return what decodes a model's outputs best, for `with_fitted`; by default nothing."""
        return {}

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return the decisions of each row, (rows, decisions).

        Where the rows of an example decide together, the outputs are of one, and so is the row;
        where texts are compared, they are of all texts.
        """
        return np.asarray(outputs.logits.argmax(axis=1), dtype=np.int64)[:, None]

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return how far each logit must move, at least, to turn a decision, (rows, decisions).

        Of a softmax it is half the distance of the two largest: they swap where both move so far.
        """
        ordered = np.sort(outputs.logits, axis=1)
        return np.asarray(ordered[:, -1:] - ordered[:, -2:-1]) / 2

    def scale(self, logits: npt.NDArray[np.float64]) -> float:
        """Return the unit of bounds on single logits: the largest, 0 of none."""
        return float(np.abs(logits).max(initial=0.0))

    def size_and_spread(self, logits: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return the units of differences of finite logits (rows, labels), over texts.

        The spread is the standard deviation over texts, all labels together, without what changes
        no probability. The size is how far from a tie a text is that is one spread farther than
        the average. Of a model that hardly distinguishes texts, the spread is a share of the
        logits, or what hardly changes a probability: what rounding adds to so little decides
        nothing.
        """
        probable = self.probable(logits)
        average = float(np.sqrt(np.square(probable.mean(axis=0)).mean()))
        spread = float(np.sqrt(probable.var(axis=0).mean()))
        spread = max(spread, LEAST_SPREAD * float(np.hypot(average, spread)), LEAST_SPREAD_LOGITS)
        return average + spread, spread

    def probable(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return logits (rows, labels) less what changes no probability: the mean of each row."""
        return np.asarray(logits - logits.mean(axis=1, keepdims=True))

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return the mean KL divergence of a candidate's predictions from a reference's; both are
        logits (rows, labels)."""
        first, second = (_log_softmax(each.astype(np.float64)) for each in (reference, candidate))
        return float((np.exp(first) * (first - second)).sum(axis=1).mean())

    @abstractmethod
    def to_example(self, texts: tuple[str, ...]) -> Example:
        """Return what the model reads of the texts of a request's row."""

    def text_of_cell(self, values: Mapping[str, object], column: str) -> str:
        """Return the text to classify in a cell; CellError where there is none."""
        return text_of_cell(values, column)

    @abstractmethod
    def to_texts(self, example: Example) -> tuple[str, ...]:
        """Return the texts that a client sends of an example."""

    @abstractmethod
    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of a merged batch by name.

        Args:
            outputs: of each example.
            examples: as the model has read them.
            labels: their names, as bytes.
            texts: of each example, as they were sent.
        """

    def response_of(
        self, tensors: Tensors, rows: slice, examples: Sequence[Example]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the tensors of one request of a merged batch, given its rows and examples."""
        return {name: array[rows] for name, array in tensors.items()}

    @abstractmethod
    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        """Return label, score and logits of the prediction in a row of a response."""

    def logits_at(self, places: Sequence[int] | IntArray, logits: Any) -> npt.NDArray[Any]:
        """Return the logits at some places (rows, labels), given those of a response's row."""
        return np.asarray(np.atleast_2d(np.array(logits))[list(places)])

    @abstractmethod
    def joined_logits(self, responses: Sequence[Tensors]) -> FloatArray:
        """Return the logits of several responses as one array."""

    @abstractmethod
    def lines(
        self, labels: Sequence[str], scores: Sequence[str], example: Example
    ) -> Iterable[str]:
        """Return the lines that show a prediction; the scores are as they are to be shown."""


def squared_in_variances(reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
    """Return the mean squared difference of outputs, in variances of the reference."""
    moved = np.subtract(candidate, reference, dtype=np.float64)
    return float(np.square(moved).mean() / (np.var(reference, dtype=np.float64) or 1.0))


def most_frequent(label_ids: Iterable[int]) -> int:
    """Return the most frequent label, the lowest of several."""
    counts = Counter(label_ids)
    return min(counts, key=lambda label: (-counts[label], label))


def one_label(
    predicted: Iterable[int], truth: Iterable[int], labels: Sequence[str]
) -> tuple[Constant, ...]:
    """Return the one label of all predictions, where the true labels are several."""
    found, counts = set(predicted), Counter(truth)
    del counts[NO_LABEL]
    if len(found) != 1 or len(counts) < 2:
        return ()
    (label,) = found
    return (Constant(labels[label], counts[label] / counts.total(), counts.total()),)


def _log_softmax(logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def are_unnamed(labels: Sequence[str]) -> bool:
    """Return whether nobody has named some labels: they are those that transformers makes."""
    return all(UNNAMED.fullmatch(label) for label in labels)


def softmax_of_largest(logits: FloatArray) -> FloatArray:
    """Return the probability of each row's prediction, (rows, labels) -> (rows,)."""
    exponents = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(1.0 / exponents.sum(axis=1), dtype=np.float32)  # the largest is exp(0)


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
    """Return a cell; CellError where it is not there or holds nothing."""
    if column not in values:
        raise CellError(column, f"missing; this row has {', '.join(map(repr, values))}")
    value = values[column]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise CellError(column, f"missing value ({value}). {FILL_IN}")
    return value


def shown(value: object) -> str:
    """Return a value as a message shows it, shortened where it is long."""
    whole = repr(value)
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}..."
