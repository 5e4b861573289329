"""Problem: all of one kind of problem that does not need PyTorch, and what several kinds share.

`TextProblem` answers for a text or a pair, `Softmax` decides for one label by each row of logits,
and a `Span` is characters of a text that belong together.

An endpoint and its clients read problems as well, so neither PyTorch nor transformers is imported
here; `bertender.training.heads` has the PyTorch side of each.
"""

from __future__ import annotations

import copy
import itertools
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertender.core.card import Calibration
from bertender.core.errors import ConfigError
from bertender.metrics.calibration import log_softmax
from bertender.metrics.metric import Parts
from bertender.metrics.targets import NO_LABEL, is_labelled
from bertender.problems.reading import Columns, Reading, Target
from bertender.text.batch import Batch, Example, Tokenize, keep_text
from bertender.text.windows import TokenizeTextWindows, pooled, windows_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer


UNNAMED = re.compile(r"LABEL_\d+")
LEAST_SPREAD = 0.05
"""Share of the root mean square of the centred logits."""
LEAST_SPREAD_LOGITS = 0.05
"""In logits. Where two move in opposite directions, each by a fifth of it, as the median text of 8
bits may, a probability changes by half a hundredth at most: p (1 - p) times the 0.02 by which their
distance changes."""

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Tensors = Mapping[str, npt.NDArray[Any]]


class WordParts(NamedTuple):
    """What a model outputs for later parts of words, a row for each; see `tokenizer`."""

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


class Problem(Reading[Target]):
    """A kind of problem: how its examples are read, encoded, decoded, scored and served.

    A kind states what has no value or no body here and in `Reading`, and changes of the rest what
    is different of it. `TextProblem` has what those need that answer for a text as a whole, and
    `Softmax` what those do whose answer is one label of several.

    A row of logits is a prediction: one an example, or one a word. What a row decides may be equal
    to what another one does, or not: its decisions. A softmax has one a row, a set of labels one
    for each label, and a number none.
    """

    name: str
    """The problem_type of transformers, or its name for the head's task."""
    summary: str
    metrics: tuple[str, ...]
    """Rows of METRICS, the default first."""
    model_class: str
    """The class of transformers that loads a model with this head."""
    model_settings: Mapping[str, Any]
    """Settings of the model's config.json, by which transformers knows the kind of problem."""
    response_tensors: tuple[Tensor, ...]
    """The tensors of an endpoint's response."""

    # the model and its tokenizer

    tokenizer_settings: Mapping[str, Any] = {}
    """Settings of the tokenizer that such a model wants."""
    column_outputs: tuple[str, ...] = ()
    """Outputs of a graph besides the logits: a column of them each, by the names that other
    libraries read."""
    per_token: bool = False
    """A model has logits for each token of an example."""
    takes_windows: bool = False
    """A text that is longer than the model's input may be read in windows."""
    window: int | None = None
    """Tokens of a window, by default; None where an example has none, and longer texts are cut."""
    gives_vectors: bool = False
    """A row of its outputs is a vector, whose width each model has its own."""
    has_thresholds: bool = False
    """A threshold of each label is fitted once a model is trained."""
    shares_encoder: bool = False
    """It may be one of several heads on one encoder, all asked of the same text."""
    heads: Mapping[str, Problem[Any]] = {}
    """The kind of each head by its name, where a model has several."""

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

    def output_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the names of a model's outputs, given the labels of its task."""
        return tuple(labels)

    def settings_to_learn(self, labels: Sequence[str]) -> Mapping[str, Any]:
        """Return the settings of the tokenizer of a model that is about to learn such labels."""
        return self.tokenizer_settings

    def reading(self, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Self:
        """Return the problem of a model whose texts this tokenizer reads."""
        return self

    # examples as batches

    separator: str = " | "
    """Between the strings of an example where one is shown."""

    @abstractmethod
    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        """Return what turns examples into token arrays."""

    def keep_text(self, examples: Sequence[Example]) -> Batch:
        """Return examples as a batch for what reads the texts itself, such as an endpoint."""
        return keep_text(examples)

    @abstractmethod
    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        """Return the shortest example that can be, and one of more than so many tokens."""

    # outputs, and what they say

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

    # probabilities, of the kinds that have some

    calibrated_by: tuple[str, ...] = ()
    """Methods that calibrate its probabilities, the usual one first; none where it has none."""
    one_of_labels: bool = False
    """A row's probabilities are of one label each, and add up to 1."""
    calibration: Calibration | None = None
    """That of the model; None leaves the probabilities as they are."""

    @property
    def has_confidence(self) -> bool:
        """Whether a prediction has a probability of being right."""
        return bool(self.calibrated_by)

    def with_calibration(self, calibration: Calibration | None) -> Self:
        """Return the kind of problem with a model's calibration."""
        if calibration == self.calibration:
            return self
        problem = copy.copy(self)
        problem.calibration = calibration
        return problem

    def probabilities(
        self, logits: npt.NDArray[Any], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of each label, (rows, labels)."""
        raise ConfigError(
            f"{self.name!r} has no probabilities. Kinds of problems that choose labels have."
        )

    def confidence(
        self, outputs: Sequence[Outputs], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of the least probable decision about each example, (examples,);
        0 of one that the model sees nothing of."""
        found = np.zeros(len(outputs))
        seen = [place for place, own in enumerate(outputs) if len(own.logits)]
        if seen:
            counts = [len(outputs[place].logits) for place in seen]
            rows = np.concatenate([outputs[place].logits for place in seen])
            starts = np.cumsum([0, *counts[:-1]])
            found[seen] = np.minimum.reduceat(self.confidences(rows, labels), starts)
        return found

    def confidences(
        self, logits: npt.NDArray[Any], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of each row's least probable decision, (rows,)."""
        return np.asarray(self.probabilities(logits, labels).max(axis=1))

    def truth_of(
        self, outputs: Outputs, target: Target, labels: int
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Return which labels of each row are right (rows, labels), and which rows somebody has
        labelled (rows,)."""
        truth = np.zeros((len(outputs.logits), labels), dtype=bool)
        truth[0, [number for number in self.labels_of(target) if number >= 0]] = True
        return truth, np.array([is_labelled(target)])

    # scores, and answers that read no text

    def metrics_of(self, labels: Sequence[str], targets: Sequence[Target]) -> tuple[str, ...]:
        """Return the scores that say something of such labels and targets, the usual one first."""
        return self.metrics

    def parts(self, target: Target, labels: Sequence[str]) -> Parts:
        """Return what an answer consists of, so that each label has scores of its own."""
        return {(labels[number], None) for number in self.labels_of(target)}

    def where_labelled(self, prediction: Target, target: Target) -> Target:
        """Return a prediction, without labels of those of several heads that the target lacks."""
        return prediction

    def scored_labels(self, labels: Sequence[str]) -> Sequence[str]:
        """Return the labels that have scores of their own, whether or not they occur."""
        return labels if self.names_labels else ()

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

    # how near the outputs of two models are: what is here is for numbers

    output: str = "logit"
    """The word for one of a model's outputs in messages."""
    decides_within: Literal["row", "example", "texts"] = "row"
    """Where decisions are taken: in each row of outputs alone, in the rows of an example together,
    or among the rows of all texts, which `decisions` must then be given at once."""
    least_spread: float = LEAST_SPREAD_LOGITS
    """Of outputs over texts: less is rounding."""

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return the decisions of each row, (rows, decisions): by default none, as a number is near
        another one, and not right or wrong.

        Where the rows of an example decide together, the outputs are of one, and so is the row;
        where texts are compared, they are of all texts.
        """
        return np.empty((len(outputs.logits), 0), dtype=np.int64)

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return how far each logit must move, at least, to turn a decision, (rows, decisions)."""
        return np.empty((len(outputs.logits), 0))

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
        spread = max(spread, LEAST_SPREAD * float(np.hypot(average, spread)), self.least_spread)
        return average + spread, spread

    def probable(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return logits (rows, labels) less what changes no answer: by default as they are."""
        return logits

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return how far a candidate's outputs are from a reference's, both (rows, labels): by
        default the mean squared difference, in variances of the reference."""
        moved = np.subtract(candidate, reference, dtype=np.float64)
        return float(np.square(moved).mean() / (np.var(reference, dtype=np.float64) or 1.0))

    # requests and responses of an endpoint

    logits_tensor: str = "LOGITS"
    """The one that has what the model outputs."""
    beyond: float = 0.0
    """In that tensor, where another example has more outputs."""

    def asked(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        """Return what an endpoint is asked about some examples, one after another."""
        return tuple(examples)

    def asked_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of the texts that an endpoint is asked about at once."""
        return tuple(columns)

    def to_example(self, texts: tuple[str, ...]) -> Example:
        """Return what the model reads of the texts of a request's row."""
        return texts

    def to_texts(self, example: Example) -> tuple[str, ...]:
        """Return the texts that a client sends of an example."""
        return example

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

    def joined_logits(self, responses: Sequence[Tensors]) -> FloatArray:
        """Return the logits of several responses as one array, as wide as the widest."""
        own = [tensors[self.logits_tensor] for tensors in responses]
        widest = max(array.shape[1] for array in own)
        return np.concatenate(
            [
                np.pad(
                    array,
                    [(0, 0), (0, widest - array.shape[1]), *[(0, 0)] * (array.ndim - 2)],
                    constant_values=self.beyond,
                )
                for array in own
            ]
        )

    @abstractmethod
    def lines(
        self, labels: Sequence[str], scores: Sequence[str], example: Example
    ) -> Iterable[str]:
        """Return the lines that show a prediction; the scores are as they are to be shown."""


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


def are_unnamed(labels: Sequence[str]) -> bool:
    """Return whether nobody has named some labels: they are those that transformers makes."""
    return all(UNNAMED.fullmatch(label) for label in labels)


class TextProblem(Problem[Target]):
    """A text, or a pair of texts, has one row of logits."""

    columns = Columns(("text",), "label")
    model_class = "AutoModelForSequenceClassification"
    takes_pairs = True
    takes_windows = True
    windows: str | None = None
    """How the logits of a text's windows are joined; None where longer texts are cut."""

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Any]:
        return self.read_texts(values, columns.texts), self.read_label(values, columns.label)

    @abstractmethod
    def read_label(self, values: Mapping[str, object], column: str) -> Any:
        """Return what a row of a file is labelled with.

        Raises:
            CellError: the cell cannot be used.
        """

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        longest = []
        for texts in zip(*examples, strict=True):
            words = [word for text in texts for word in text.split()] or ["a"]
            longest.append(" ".join(itertools.islice(itertools.cycle(words), tokens)))
        return tuple((text.split() or ["a"])[0] for text in examples[0]), tuple(longest)

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        reads = Tokenize if windows_of(tokenizer) is None else TokenizeTextWindows
        return reads(tokenizer, max_length)

    def reading(self, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Self:
        if windows_of(tokenizer) == self.windows:
            return self
        problem = copy.copy(self)
        problem.windows = windows_of(tokenizer)
        return problem

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        return sum(batch.counts), labels

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        if self.windows is None:
            return super().joined(rows)
        logits = np.concatenate([each.logits for each in rows])
        return Outputs(pooled(logits, self.windows)[None], rows[0].places)

    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        place = np.zeros(1, dtype=np.int64)
        return [Outputs(row[None], place) for row in logits]

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return one line for a text, with all its labels."""
        return [f"{','.join(labels) or '-'}\t{','.join(scores) or '-'}\t{' | '.join(example)}"]


class Softmax:
    """A row of logits is a softmax over labels; see `Problem`."""

    calibrated_by: tuple[str, ...] = ("temperature",)
    one_of_labels = True
    calibration: Calibration | None

    @property
    def temperature(self) -> float:
        """What logits are divided by before the softmax; no prediction depends on it."""
        return self.calibration.temperature if self.calibration else 1.0

    def probabilities(
        self, logits: npt.NDArray[Any], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        scaled = np.asarray(logits, dtype=np.float64) / self.temperature
        return np.asarray(np.exp(log_softmax(scaled)))

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return the label of each row, (rows, 1)."""
        return np.asarray(outputs.logits.argmax(axis=1), dtype=np.int64)[:, None]

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return half the distance of the two largest: they swap where both move so far."""
        ordered = np.sort(outputs.logits, axis=1)
        return np.asarray(ordered[:, -1:] - ordered[:, -2:-1]) / 2

    def probable(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return logits less the mean of each row."""
        return np.asarray(logits - logits.mean(axis=1, keepdims=True))

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return the mean KL divergence."""
        first, second = (log_softmax(each.astype(np.float64)) for each in (reference, candidate))
        return float((np.exp(first) * (first - second)).sum(axis=1).mean())


def softmax_of_largest(logits: FloatArray, temperature: float = 1.0) -> FloatArray:
    """Return the probability of each row's prediction, (rows, labels) -> (rows,)."""
    exponents = np.exp((logits - logits.max(axis=1, keepdims=True)) / temperature)
    return np.asarray(1.0 / exponents.sum(axis=1), dtype=np.float32)  # the largest is exp(0)


class Span(NamedTuple):
    """Characters of a text that belong together, and what they are."""

    label: str
    score: float
    start: int
    end: int
    """The character after the last."""
    text: str


SPAN_OUTPUTS = (
    Tensor("SPAN_LABEL", "TYPE_STRING", (-1,)),
    Tensor("SPAN_SCORE", "TYPE_FP32", (-1,)),
    Tensor("SPAN_START", "TYPE_INT32", (-1,)),
    Tensor("SPAN_END", "TYPE_INT32", (-1,)),
    Tensor("SPAN_TEXT", "TYPE_STRING", (-1,)),
)
"""The fields of a span."""
SPAN_TENSORS = tuple(each.name for each in SPAN_OUTPUTS)


def span_tensors(spans: Sequence[Sequence[Span]]) -> dict[str, npt.NDArray[Any]]:
    """Return tensors (batch, spans), as long as the most spans of a text, padded with
    empty values."""
    shape = len(spans), max(1, *map(len, spans))
    tensors: dict[str, npt.NDArray[Any]] = {
        "SPAN_LABEL": np.full(shape, b"", dtype=np.object_),
        "SPAN_SCORE": np.zeros(shape, dtype=np.float32),
        "SPAN_START": np.zeros(shape, dtype=np.int32),
        "SPAN_END": np.zeros(shape, dtype=np.int32),
        "SPAN_TEXT": np.full(shape, b"", dtype=np.object_),
    }
    for row, own in enumerate(spans):
        for place, span in enumerate(own):
            for name, value in zip(SPAN_TENSORS, span, strict=True):
                tensors[name][row, place] = value.encode() if isinstance(value, str) else value
    return tensors


def most_spans(tensors: Tensors, rows: slice) -> int:
    """Return the most spans that a text of some rows has, 1 at least."""
    return max(1, int((tensors["SPAN_END"][rows] > 0).sum(axis=1).max()))


def read_spans(tensors: Tensors, row: int) -> tuple[dict[str, Any], ...] | None:
    """Return the spans in a row of a response; None where it has no tensors of spans, as those of
    servers of earlier versions."""
    if "SPAN_END" not in tensors:
        return None
    found = zip(*(tensors[name][row].tolist() for name in SPAN_TENSORS), strict=True)
    return tuple(
        {
            "label": label.decode(),
            "score": score,
            "start": start,
            "end": end,
            "text": text.decode(),
        }
        for label, score, start, end, text in found
        if end
    )
