"""QUESTION_ANSWERING: a question, and a context that contains its answer, or none.

A model has two logits for each token of the context: the answer starts there, and the answer ends
there. The first token ([CLS]) stands for "no answer" (Devlin et al. 2018, arXiv 1810.04805, section
4.3). Its sum must be below that of an answer by a threshold, which is fitted on data and stored in
the card. If every question of the data has an answer, no threshold is fitted, and the model always
answers. The best answer over all windows counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.metrics.answers import word_f1
from bertender.metrics.metric import NO_LABEL
from bertender.problems.problem import (
    SPAN_OUTPUTS,
    Constant,
    FloatArray,
    IntArray,
    Outputs,
    Problem,
    Span,
    Tensor,
    Tensors,
    read_spans,
    span_tensors,
)
from bertender.problems.reading import (
    CellError,
    Columns,
    shown,
    text_of_cell,
    usable_cell,
    visible_text,
    whole_number,
)
from bertender.text.batch import NO_WORD, Batch, Example, Tokenize
from bertender.text.windows import MOST_CHARACTERS, NO_ANSWER, TokenizeContextWindows, span_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer


Answers = tuple[tuple[str, int], ...]
"""Answers: texts, and their start characters in the context; empty for no answer."""

TEXT, START = "text", "answer_start"
"""Keys of an answer, in SQuAD's files."""
ANSWER = "answer"
"""Column of the text, in a table with an answer a row."""


def read_context(values: Mapping[str, object], column: str) -> str:
    """Return a context without stripping white space.

    Raises:
        CellError: it is missing, empty, or not text.
    """
    return visible_text(usable_cell(values, column), column)


def read_answers(
    values: Mapping[str, object], columns: Sequence[str], context: str
) -> Iterable[tuple[str, int]]:
    """Yield the answers of a row.

    Args:
        values: values of the row.
        columns: column of the answers, or columns of an answer's text and start.
        context: context that must have the answers at their starts.

    Raises:
        CellError: a cell cannot be used, or an answer is not at its start.
    """
    column = columns[0]
    if column not in values:
        usable_cell(values, column)  # `text_of` raises the error
    cell = values[column]
    if _is_missing(cell):
        return
    if len(columns) > 1:
        answers: Iterable[tuple[object, object]] = [(cell, usable_cell(values, columns[1]))]
    else:
        answers = _listed(cell, column)
    for text, start in answers:
        answer = _text(text, column), _whole_number(start, columns[-1])
        _check_place(*answer, context, column)
        yield answer


def trimmed(answer: tuple[str, int]) -> tuple[str, int]:
    """Return an answer without white space around it."""
    text, start = answer
    return text.strip(), start + len(text) - len(text.lstrip())


def _listed(cell: object, column: str) -> Iterator[tuple[object, object]]:
    """Yield text and start of each answer in a list."""
    if isinstance(cell, Mapping) and {TEXT, START} <= {*cell}:  # as in `datasets`
        texts, starts = cell[TEXT], cell[START]
        if not isinstance(texts, Sequence) or not isinstance(starts, Sequence):
            raise CellError(column, f"{shown(cell)}: {TEXT} and {START} are not lists")
        if len(texts) != len(starts):
            raise CellError(column, f"{len(texts)} of {TEXT} and {len(starts)} of {START}")
        yield from zip(texts, starts, strict=True)
        return
    if not isinstance(cell, list | tuple):
        raise CellError(
            column,
            f"{shown(cell)} is not a list of answers. Give [{{'{TEXT}': ..., '{START}': ...}}], or "
            f"[] for no answer; or name two columns, --label-column {ANSWER},{START}",
        )
    for each in cell:
        if not isinstance(each, Mapping) or not {TEXT, START} <= {*each}:
            raise CellError(column, f"{shown(each)} is not an answer with {TEXT} and {START}")
        yield each[TEXT], each[START]


def _is_missing(cell: object) -> bool:
    return cell is None or cell == "" or (isinstance(cell, float) and cell != cell)


def _text(value: object, column: str) -> str:
    if not isinstance(value, str):
        raise CellError(column, f"{shown(value)} is not text. Give a string")
    if not value.strip():
        raise CellError(
            column,
            f"an answer without text ({value!r}). Where a question has no answer, leave the list "
            "empty",
        )
    return value


def _whole_number(value: object, column: str) -> int:
    text = whole_number(value)
    if isinstance(value, bool) or not text.isdecimal():
        raise CellError(column, f"{shown(value)} is not an index of a character")
    return int(text)


def _check_place(text: str, start: int, context: str, column: str) -> None:
    there = context[start : start + len(text)]
    if there == text:
        return
    place = context.find(text)
    found = f"It begins at {place}" if place >= 0 else "It is nowhere in the context"
    raise CellError(column, f"the text at {start} is {shown(there)}, not {shown(text)}. {found}")


NO_ANSWER_NAME = "no answer"
THRESHOLD = "no_answer"
"""Smallest margin of an answer's logits over those of no answer."""
LONGEST_ANSWER = 30
"""Most tokens of an answer, as in the code of Devlin et al."""
NOTHING = float(np.finfo(np.float32).min)
"""Padding of the logits in a response."""


class Found(NamedTuple):
    """The best answer of a context."""

    score: float
    """The sum of the logits of its first and last token; -inf where the context has no tokens."""
    start: int
    end: int
    """Character positions in the context."""


class QuestionAnswering(Problem[Answers]):
    """A question has an answer in a context, or none.

    Args:
        threshold: None for a model that always answers.
    """

    name = "question_answering"
    summary = "a question has an answer in a context, at a place of it, or none"
    columns = Columns(("question", "context"), "answers")
    metrics = (
        "answer_f1",
        "answer_match",
        "answered_f1",
        "answered_match",
        "unanswered_accuracy",
    )
    model_class = "AutoModelForQuestionAnswering"
    column_outputs = ("start_logits", "end_logits")
    response_tensors = (
        Tensor("LABEL", "TYPE_STRING", (1,)),
        Tensor("SCORE", "TYPE_FP32", (1,)),
        Tensor("LOGITS", "TYPE_FP32", (-1, None)),
        *SPAN_OUTPUTS,
    )
    beyond = NOTHING
    takes_pairs = True
    per_token = True
    window = 384
    names_labels = False
    decides_within = "example"
    model_settings: Mapping[str, Any] = {"problem_type": None}

    def __init__(self, threshold: float | None = None) -> None:
        self.threshold = threshold

    def with_fitted(self, values: Mapping[str, float]) -> Self:
        return type(self)(values.get(THRESHOLD))

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Answers]:
        """Return question and context, and the answers.

        The context keeps its white space, since answers are character positions in it.
        """
        question, context = columns.texts
        example = text_of_cell(values, question), read_context(values, context)
        answers = read_answers(values, self.label_columns(columns.label), example[1])
        return example, tuple(dict.fromkeys(map(trimmed, answers)))

    def usual_columns(self, there: Sequence[str]) -> Columns:
        """Return the columns of SQuAD's files, or of a table with an answer in each row."""
        flat = self.columns.label not in there and ANSWER in there
        return self.columns._replace(label=f"{ANSWER},{START}") if flat else self.columns

    def label_columns(self, column: str) -> tuple[str, ...]:
        return tuple(each.strip() for each in column.split(","))

    def label_names(self, found: Sequence[Any]) -> tuple[str, ...]:
        """Return the names of a token's two logits."""
        return ("start", "end")

    def unlabelled(self, example: Example) -> tuple[int, ...]:
        return (NO_LABEL,)

    def told_apart_by(self, example: Example) -> Example:
        """Return the context, so that a model does not learn from those of held-out questions."""
        return example[1:]

    def by_names(self, target: Answers, labels: Sequence[str]) -> str:
        """Return the text of the first answer; empty for none."""
        return target[0][0] if target else ""

    def constant(
        self, targets: Sequence[Answers], labels: Sequence[str]
    ) -> tuple[str, Callable[[Example], Answers]]:
        """Return the best constant answer: no answer."""
        return NO_ANSWER_NAME, lambda example: ()

    def same_everywhere(
        self, predictions: Sequence[Answers], targets: Sequence[Answers], labels: Sequence[str]
    ) -> tuple[Constant, ...]:
        """Return no answer if it is predicted for all; other answers differ by context."""
        if any(predictions) or not any(targets):
            return ()
        share = sum(not target for target in targets) / len(targets)
        return (Constant(NO_ANSWER_NAME, share, len(targets)),)

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        """Return a question and a context of one word each, and a context of several windows."""
        question, context = examples[0]
        words = context.split() or ["a"]
        long = " ".join(words * (1 + tokens // len(words)))
        return ((question.split() or ["a"])[0], words[0]), (question, long)

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        return TokenizeContextWindows(tokenizer, max_length)

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int, ...]:
        return (*_places_of(batch).shape, labels)

    def row_outputs(self, logits: FloatArray, batch: Batch) -> list[Outputs]:
        """Return the logits of the first token of each window and of the context's tokens."""
        places = _places_of(batch)
        return [
            Outputs(logits[row][own != NO_WORD], own[own != NO_WORD])
            for row, own in enumerate(places)
        ]

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        """Return the tokens of all windows, concatenated."""
        return Outputs(
            np.concatenate([each.logits for each in rows]),
            np.concatenate([each.places for each in rows]),
        )

    def decode(self, outputs: Outputs, example: Example) -> Answers:
        """Return the best answer, or none."""
        best = _best(outputs)
        if best.score == -np.inf or not best.score > self._least(outputs):
            return ()
        return (trimmed((example[1][best.start : best.end], best.start)),)

    def unfitted(self, targets: Sequence[Answers]) -> Mapping[str, float]:
        """Return a threshold of 0 if a question has no answer."""
        return {} if all(targets) else {THRESHOLD: 0.0}

    def fit(
        self, outputs: Sequence[Outputs], examples: Sequence[Example], targets: Sequence[Answers]
    ) -> Mapping[str, float]:
        """Return the threshold with the best F1; none if all questions have answers."""
        if all(targets):
            return {}
        gains, changes = [], []  # distance of an answer above none, and its gain in F1
        for own, example, target in zip(outputs, examples, targets, strict=True):
            found = QuestionAnswering().decode(own, example)
            if found:
                f1 = max((word_f1(found[0][0], text) for text, _ in target), default=0.0)
                gains.append(_best(own).score - _none(own))
                changes.append(f1 - float(not target))
        if not gains:
            return {THRESHOLD: 0.0}
        order = np.argsort(gains)[::-1]
        ordered = np.array(gains)[order]
        # with the first i questions answered
        totals = np.concatenate([[0.0], np.cumsum(np.array(changes)[order])])
        best = int(totals.argmax())
        around = np.concatenate([[ordered[0] + 1], ordered, [ordered[-1] - 1]])
        return {THRESHOLD: float((around[best] + around[best + 1]) / 2)}

    @property
    def has_confidence(self) -> bool:
        return True

    def confidence(
        self, outputs: Sequence[Outputs], labels: Sequence[str]
    ) -> npt.NDArray[np.float64]:
        """Return the probability of each example's answer, or of none, (examples,)."""
        answered = (_best(own).score > self._least(own) for own in outputs)
        pairs = zip(outputs, answered, strict=True)
        return np.array([self._probability(own, each) for own, each in pairs])

    def decisions(self, outputs: Outputs) -> IntArray:
        """Return the start and end of the answer, (1, 2)."""
        cells = self._cells(outputs)
        return np.asarray(cells.places[cells.logits.argmax(axis=0)])[None]

    def margins(self, outputs: Outputs) -> npt.NDArray[np.float64]:
        """Return half the distance between the two largest logits of start and of end, (1, 2)."""
        cells = np.sort(self._cells(outputs).logits, axis=0)
        if len(cells) < 2:  # no other decision
            return np.zeros((1, 2))
        return np.asarray(cells[-1:] - cells[-2:-1]) / 2

    def to_example(self, texts: tuple[str, ...]) -> Example:
        if len(texts) != 2:
            raise DataError(
                f"{len(texts)} texts, and this model reads two. Give a question and its context."
            )
        question, context = texts
        return question.strip(), context  # answers are character positions in the context

    def text_counts(self, columns: int | None) -> tuple[int, int | None]:
        """Return two: a question and its context."""
        return 2, 2

    def text_of_cell(self, values: Mapping[str, object], column: str) -> str:
        """Return the text unchanged, as answers are character positions in it."""
        return read_context(values, column)

    def to_texts(self, example: Example) -> tuple[str, ...]:
        return self.to_example(example)

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[Example],
    ) -> dict[str, npt.NDArray[Any]]:
        """Return (batch, 1) tensors, and logits padded with NOTHING to the largest number of
        tokens.

        The span is the answer; without one, span and label are empty.
        """
        longest = max(len(own.places) for own in outputs)
        logits = np.full((len(outputs), longest, len(labels)), NOTHING, dtype=np.float32)
        scores, spans = [], []
        for row, (own, example) in enumerate(zip(outputs, examples, strict=True)):
            logits[row, : len(own.places)] = own.logits
            answers = self.decode(own, example)
            scores.append(self._probability(own, bool(answers)))
            spans.append(
                [
                    Span(ANSWER, scores[-1], start, start + len(text), text)
                    for text, start in answers
                ]
            )
        tensors = span_tensors(spans)
        values = np.array(scores, dtype=np.float32)[:, None]
        return {"LABEL": tensors["SPAN_TEXT"], "SCORE": values, "LOGITS": logits, **tensors}

    def response_of(
        self, tensors: Tensors, rows: slice, examples: Sequence[Example]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return logits as long as the largest number of tokens in the request."""
        own = {name: array[rows] for name, array in tensors.items()}
        longest = max(1, int((own["LOGITS"][..., 0] > NOTHING).sum(axis=1).max()))
        return {**own, "LOGITS": np.ascontiguousarray(own["LOGITS"][:, :longest])}

    def read_response(self, tensors: Tensors, row: int, example: Example) -> dict[str, Any]:
        logits = tensors["LOGITS"][row]
        return {
            "label": tensors["LABEL"][row, 0].decode(),
            "score": float(tensors["SCORE"][row, 0]),
            "spans": read_spans(tensors, row),
            "logits": tuple(map(tuple, logits[logits[:, 0] > NOTHING].tolist())),
        }

    def logits_at(self, places: Sequence[int] | IntArray, logits: Any) -> npt.NDArray[Any]:
        """Return all logits: a response only has tokens of the context."""
        return np.asarray(np.atleast_2d(np.array(logits)))

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return one line for a question."""
        return [f"{labels[0] or NO_ANSWER_NAME}\t{scores[0]}\t{example[0]}"]

    def _least(self, outputs: Outputs) -> float:
        """Return the smallest possible logits of an answer."""
        return -np.inf if self.threshold is None else _none(outputs) + self.threshold

    def _cells(self, outputs: Outputs) -> Outputs:
        """Return the competing tokens. If the model has a threshold, one of them is for no answer:
        that of the window with the smallest sum, raised by the threshold."""
        inside = outputs.places != NO_ANSWER
        cells = Outputs(outputs.logits[inside], outputs.places[inside])
        if self.threshold is None and inside.any():
            return cells
        none = outputs.logits[~inside]
        least = none[none.sum(axis=1).argmin()][None] + (self.threshold or 0.0) / 2
        return Outputs(
            np.concatenate([least, cells.logits]), np.concatenate([[NO_ANSWER], cells.places])
        )

    def _probability(self, outputs: Outputs, answered: bool) -> float:
        """Return the product of the probabilities of start and end, over all windows."""
        cells = self._cells(outputs)
        logits = cells.logits.astype(np.float64)
        score = _best(outputs).score if answered else float(logits[0].sum())
        highest = logits.max(axis=0)
        total = (highest + np.log(np.exp(logits - highest).sum(axis=0))).sum()
        return float(np.exp(score - total))


def tokens_of_answer(places: IntArray, answers: Answers) -> tuple[int, int]:
    """Return the first and last token of the first answer inside a window, or the window's first
    token twice.
    """
    inside = np.flatnonzero(places > NO_ANSWER)
    starts, ends = np.divmod(places[inside], MOST_CHARACTERS)
    for text, start in answers:
        own = np.flatnonzero((starts < start + len(text)) & (ends > start))
        if len(own) and starts[own[0]] <= start and ends[own[-1]] >= start + len(text):
            return int(inside[own[0]]), int(inside[own[-1]])
    return 0, 0


def _best(outputs: Outputs) -> Found:
    """Return the best answer over all windows with at most LONGEST_ANSWER tokens."""
    best = Found(-np.inf, 0, 0)
    begins = np.flatnonzero(outputs.places == NO_ANSWER)
    for begin, end in zip(begins, (*begins[1:], len(outputs.places)), strict=True):
        window = Outputs(outputs.logits[begin + 1 : end], outputs.places[begin + 1 : end])
        if not len(window.places):
            continue
        starts, ends = window.logits.astype(np.float64).T
        after = np.concatenate([ends, np.full(LONGEST_ANSWER - 1, -np.inf)])
        sums = starts[:, None] + np.lib.stride_tricks.sliding_window_view(after, LONGEST_ANSWER)
        first, more = divmod(int(sums.argmax()), LONGEST_ANSWER)
        if sums[first, more] > best.score:
            start, _ = span_of(int(window.places[first]))
            _, stop = span_of(int(window.places[first + more]))
            best = Found(float(sums[first, more]), start, stop)
    return best


def _none(outputs: Outputs) -> float:
    """Return the sum of logits for no answer: the smallest over windows, since a context has no
    answer only if no window has one."""
    none = outputs.logits[outputs.places == NO_ANSWER]
    return float(none.astype(np.float64).sum(axis=1).min())


def _places_of(batch: Batch) -> IntArray:
    assert batch.words is not None, "an encoder of questions states what tokens stand for"
    return batch.words


QUESTION_ANSWERING = QuestionAnswering()
