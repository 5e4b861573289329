"""Problem: a kind of problem without PyTorch, and the classes that several kinds share.

`TextProblem` predicts for a text or a pair, `Softmax` one label for each row of logits, and a
`Span` is part of a text.

Endpoints and clients import problems, so neither PyTorch nor transformers is imported here;
`bertender.training.heads` has their PyTorch side.
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
from bertender.metrics.metric import NO_LABEL, Parts, is_labelled
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
"""In logits. If two logits move apart, each by a fifth of it, as in the median text with 8 bits, a
probability changes by at most 0.005: p (1 - p) times 0.02."""

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int64]
Tensors = Mapping[str, npt.NDArray[Any]]


class WordParts(NamedTuple):
    """Outputs for later parts of words, one row each; see `tokenizer`."""

    logits: FloatArray
    """(rows, labels)"""
    words: IntArray
    """(rows,): the number of the word."""
    offsets: IntArray
    """(rows,): characters of the word before the part."""


class Outputs(NamedTuple):
    """Outputs of a model for one example, one row per prediction."""

    logits: npt.NDArray[Any]
    """(rows, labels); for a number (1, 1), not a logit"""
    places: IntArray
    """(rows,): the item of each row, such as the number of a word."""
    parts: WordParts | None = None
    """Later parts of words."""


class Constant(NamedTuple):
    """A constant answer to all texts."""

    answer: str
    share: float
    """Share of the true labels that equal it."""
    labels: int
    """Number of true labels: one per text, or one per word."""
    head: str = ""
    """Description of the answer; empty for a model's own."""
    truth: str = ""
    """The true answers in words, where they are not labels."""


class Tensor(NamedTuple):
    """A tensor of an endpoint's response."""

    name: str
    triton_type: str
    sizes: tuple[int | None, ...]
    """Its shape after the batch: -1 for any size, None for the number of labels."""

    def dims(self, labels: int) -> tuple[int, ...]:
        """Return its shape after the batch, given the number of labels."""
        return tuple(labels if size is None else size for size in self.sizes)


class Problem(Reading[Target]):
    """A kind of problem: how its examples are read, encoded, decoded, scored and served.

    A kind defines the values and methods that are abstract here and in `Reading`, and overrides
    defaults. `TextProblem` is the base of kinds that predict for a whole text, `Softmax` of kinds
    that predict one label of several.

    A row of logits is a prediction: one an example, or one a word. Decisions are the parts of a
    prediction that are right or wrong: a softmax has one a row, a set of labels one a label, a
    number none.
    """

    name: str
    """The problem_type of transformers, or its name for the head's task."""
    summary: str
    metrics: tuple[str, ...]
    """Rows of METRICS, the default first."""
    model_class: str
    """The class of transformers that loads a model with this head."""
    model_settings: Mapping[str, Any]
    """Settings of the model's config.json that tell transformers the kind of problem."""
    response_tensors: tuple[Tensor, ...]
    """The tensors of an endpoint's response."""

    # the model and its tokenizer

    tokenizer_settings: Mapping[str, Any] = {}
    """Settings of the model's tokenizer."""
    column_outputs: tuple[str, ...] = ()
    """Outputs of a graph besides the logits, each a column of the logits, named as in other
    libraries."""
    per_token: bool = False
    """A model has logits for each token of an example."""
    takes_windows: bool = False
    """Texts longer than the model's input may be read in windows."""
    window: int | None = None
    """Tokens of a window by default; None without windows, where longer texts are cut."""
    gives_vectors: bool = False
    """Rows of outputs are vectors, whose width depends on the model."""
    has_thresholds: bool = False
    """A threshold of each label is fitted after training."""
    shares_encoder: bool = False
    """It may be one of several heads of an encoder, which read the same text."""
    heads: Mapping[str, Problem[Any]] = {}
    """Kind of each of several heads, by name."""

    @property
    def keeps_vocabulary(self) -> bool:
        """Whether a model's vocabulary stays whole unless its size is set.

        Tags and answers are learned token by token, and vectors are compared with those of other
        texts.
        """
        return self.per_token or self.gives_vectors

    def of_labels(self, labels: Sequence[str]) -> Self:
        """Return the kind of problem for a model with these labels, in the order of its logits."""
        return self

    def output_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the names of a model's outputs, given the labels of its task."""
        return tuple(labels)

    def settings_to_learn(self, labels: Sequence[str]) -> Mapping[str, Any]:
        """Return the tokenizer settings for training a model with these labels."""
        return self.tokenizer_settings

    def reading(self, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> Self:
        """Return the problem for a model with this tokenizer."""
        return self

    # examples as batches

    separator: str = " | "
    """Separator of the strings of a shown example."""

    @abstractmethod
    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        """Return the encoder of examples to token arrays."""

    def keep_text(self, examples: Sequence[Example]) -> Batch:
        """Return examples as a batch of texts, as for an endpoint."""
        return keep_text(examples)

    @abstractmethod
    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        """Return the shortest possible example, and one with more than `tokens` tokens."""

    # outputs and predictions

    @abstractmethod
    def logits_shape(self, batch: Batch, labels: int) -> tuple[int | None, ...]:
        """Return the shape of the logits of a batch's rows; None for any size."""

    @abstractmethod
    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the outputs of each row of a batch."""

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        """Join the outputs of an example's rows; by default it has one row."""
        (own,) = rows
        return own

    def outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the outputs of each example of a batch."""
        return [self.joined(own) for own in batch.by_example(self.row_outputs(logits, batch))]

    @abstractmethod
    def decode(self, outputs: Outputs, example: Example) -> Target:
        """Return the prediction for an example."""

    def gather(self, predictions: Sequence[Target]) -> Any:
        """Return the predictions of all examples as one value, as an array."""
        return tuple(predictions)

    def with_fitted(self, values: Mapping[str, float]) -> Self:
        """Return the kind of problem with values that were fitted besides the weights, by name."""
        return self

    def unfitted(self, targets: Sequence[Target]) -> Mapping[str, float]:
        """Return the values for `with_fitted` before fitting, given the targets."""
        return {}

    def fit(
        self, outputs: Sequence[Outputs], examples: Sequence[Example], targets: Sequence[Target]
    ) -> Mapping[str, float]:
        """Fit the values for `with_fitted` that decode a model's outputs best; by default none."""
        return {}

    # probabilities

    calibrated_by: tuple[str, ...] = ()
    """Methods that calibrate its probabilities, the default first; empty without probabilities."""
    one_of_labels: bool = False
    """The probabilities of a row sum to 1."""
    calibration: Calibration | None = None
    """The model's calibration; None for uncalibrated probabilities."""

    @property
    def has_confidence(self) -> bool:
        """Whether predictions have a probability of being right."""
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
            f"{self.name!r} has no probabilities, unlike kinds of problems with labels."
        )

    def confidence(
        self, outputs: Sequence[Outputs], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of each example's least probable decision, (examples,); 0 for one
        without outputs."""
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
        """Return the right labels of each row (rows, labels), and the labelled rows (rows,)."""
        truth = np.zeros((len(outputs.logits), labels), dtype=bool)
        truth[0, [number for number in self.labels_of(target) if number >= 0]] = True
        return truth, np.array([is_labelled(target)])

    # scores, and constant answers

    def metrics_of(self, labels: Sequence[str], targets: Sequence[Target]) -> tuple[str, ...]:
        """Return the metrics that apply to these labels and targets, the default first."""
        return self.metrics

    def parts(self, target: Target, labels: Sequence[str]) -> Parts:
        """Return the parts of a prediction that have labels of their own, for scores by label."""
        return {(labels[number], None) for number in self.labels_of(target)}

    def where_labelled(self, prediction: Target, target: Target) -> Target:
        """Return a prediction; of several heads, without those that the target lacks."""
        return prediction

    def scored_labels(self, labels: Sequence[str]) -> Sequence[str]:
        """Return the labels with scores of their own, also those that do not occur."""
        return labels if self.names_labels else ()

    @abstractmethod
    def constant(
        self, targets: Sequence[Target], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], Target]]:
        """Return the best constant answer for training targets: its name, and a function that
        predicts it."""

    @abstractmethod
    def same_everywhere(
        self, predictions: Sequence[Target], targets: Sequence[Target], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        """Return the constant answer of all predictions, where targets differ; of several heads,
        each head's."""

    # distances between two models' outputs: the defaults are for numbers

    output: str = "logit"
    """Word for an output in messages."""
    decides_within: Literal["row", "example", "texts"] = "row"
    """Scope of decisions: each row of outputs, the rows of an example, or the rows of all texts,
    which `decisions` then takes at once."""
    least_spread: float = LEAST_SPREAD_LOGITS
    """Smallest spread of outputs over texts above rounding."""

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return the decisions of each row, (rows, decisions): by default none, as for numbers.

        If an example's rows decide together, the outputs are those of one example, and the result
        has one row; if texts are compared, the outputs are those of all texts.
        """
        return np.empty((len(outputs.logits), 0), dtype=np.int64)

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return the smallest move of each logit that changes a decision, (rows, decisions)."""
        return np.empty((len(outputs.logits), 0))

    def scale(self, logits: npt.NDArray[np.float64]) -> float:
        """Return the unit of bounds on single logits: the largest one, or 0."""
        return float(np.abs(logits).max(initial=0.0))

    def size_and_spread(self, logits: npt.NDArray[np.float64]) -> tuple[float, float]:
        """Return the units of differences of finite logits (rows, labels), over texts.

        The spread is the standard deviation over texts of centred logits, all labels together. The
        size is the distance from a tie for a text one spread above the average. For a model that
        hardly distinguishes texts, the spread is a share of the logits, or a change that hardly
        moves a probability.
        """
        probable = self.probable(logits)
        average = float(np.sqrt(np.square(probable.mean(axis=0)).mean()))
        spread = float(np.sqrt(probable.var(axis=0).mean()))
        spread = max(spread, LEAST_SPREAD * float(np.hypot(average, spread)), self.least_spread)
        return average + spread, spread

    def probable(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return logits (rows, labels) without shifts that change no answer: by default
        unchanged."""
        return logits

    def divergence(self, reference: npt.NDArray[Any], candidate: npt.NDArray[Any]) -> float:
        """Return the distance of a candidate's outputs from a reference's, both (rows, labels): by
        default the mean squared difference, in variances of the reference."""
        moved = np.subtract(candidate, reference, dtype=np.float64)
        return float(np.square(moved).mean() / (np.var(reference, dtype=np.float64) or 1.0))

    # requests and responses of an endpoint

    logits_tensor: str = "LOGITS"
    """The tensor of the model's outputs."""
    beyond: float = 0.0
    """Padding in that tensor, if another example has more outputs."""

    def asked(self, examples: Sequence[Example]) -> tuple[Example, ...]:
        """Return the texts for an endpoint, example by example."""
        return tuple(examples)

    def asked_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of texts for one request to an endpoint."""
        return tuple(columns)

    def to_example(self, texts: tuple[str, ...]) -> Example:
        """Return the example of a request's row of texts, read as those of files are."""
        return tuple(text.strip() for text in texts)

    def to_texts(self, example: Example) -> tuple[str, ...]:
        """Return the texts of an example for a request."""
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
            outputs: outputs for each example.
            examples: examples as the model read them.
            labels: label names, as bytes.
            texts: texts of each example, as they were sent.
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
        """Return the logits at some positions (rows, labels) of a response's row."""
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
        """Return the lines that show a prediction, with formatted scores."""


def most_frequent(label_ids: Iterable[int]) -> int:
    """Return the most frequent label; the lowest in a tie."""
    counts = Counter(label_ids)
    return min(counts, key=lambda label: (-counts[label], label))


def one_label(
    predicted: Iterable[int], truth: Iterable[int], labels: Sequence[str]
) -> tuple[Constant, ...]:
    """Return the constant label of all predictions, if the true labels differ."""
    found, counts = set(predicted), Counter(truth)
    del counts[NO_LABEL]
    if len(found) != 1 or len(counts) < 2:
        return ()
    (label,) = found
    return (Constant(labels[label], counts[label] / counts.total(), counts.total()),)


def are_unnamed(labels: Sequence[str]) -> bool:
    """Return whether labels have only transformers' default names."""
    return all(UNNAMED.fullmatch(label) for label in labels)


class TextProblem(Problem[Target]):
    """A text, or a pair of texts, has one row of logits."""

    columns = Columns(("text",), "label")
    model_class = "AutoModelForSequenceClassification"
    takes_pairs = True
    takes_windows = True
    windows: str | None = None
    """Pooling of the logits of a text's windows; None where longer texts are cut."""

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Any]:
        return self.read_texts(values, columns.texts), self.read_label(values, columns.label)

    @abstractmethod
    def read_label(self, values: Mapping[str, object], column: str) -> Any:
        """Return the label of a file's row.

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
        """Divisor of the logits before the softmax; predictions do not depend on it."""
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
        """Return half the distance between the two largest logits: they swap if both move that
        far."""
        ordered = np.sort(outputs.logits, axis=1)
        return np.asarray(ordered[:, -1:] - ordered[:, -2:-1]) / 2

    def probable(self, logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return logits minus the mean of each row."""
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
    """A part of a text, by character positions, and its label."""

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
    """Return tensors (batch, spans), as long as the largest number of spans in a text, padded with
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
    """Return the largest number of spans in a text among some rows, at least 1."""
    return max(1, int((tensors["SPAN_END"][rows] > 0).sum(axis=1).max()))


def read_spans(tensors: Tensors, row: int) -> tuple[dict[str, Any], ...] | None:
    """Return the spans in a row of a response; None for servers without tensors of spans."""
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
