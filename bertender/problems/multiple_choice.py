"""MULTIPLE_CHOICE: one of several choices answers a question or continues a context.

An example is a question and its choices, whose number is fixed for a task. A model scores one
choice at a time: it reads the question and the choice as a pair of texts, and has one output. The
scores of an example's choices are the logits of a softmax.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bertender.problems.problem import Outputs, Tensor
from bertender.problems.reading import (
    CellError,
    Columns,
    checked_text,
    first_words,
    shown,
    text_of_cell,
    usable_cell,
)
from bertender.problems.single_label_classification import SingleLabelClassification
from bertender.text.batch import Batch, Example, Tokenize, TokenizeChoices

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer import FileTokenizer

CHOICES = "choices"
"""A column with a list."""
NUMBERED = re.compile(r"(choice|ending|option|answer|sol|alternative)[ _-]?(\d+)", re.IGNORECASE)
"""Columns with one choice each."""
FEWEST = 2
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Choice(NamedTuple):
    """The label of a row: the number of the right choice, and the number of choices."""

    number: int
    choices: int


class MultipleChoice(SingleLabelClassification):
    """One of several choices answers a question."""

    name = "multiple_choice"
    summary = "one of several choices answers a question"
    columns = Columns(("question",), "label")
    metrics = ("accuracy",)
    response_tensors = (
        Tensor("LABEL", "TYPE_STRING", (1,)),
        Tensor("CHOICE", "TYPE_STRING", (1,)),
        Tensor("SCORE", "TYPE_FP32", (1,)),
        Tensor("LOGITS", "TYPE_FP32", (None,)),
    )
    model_settings: Mapping[str, Any] = {"problem_type": None}
    places_are_labels = True

    def more_columns(self, named: str | None, there: Sequence[str]) -> tuple[str, ...]:
        """Return the choice columns: those that the user named, the numbered ones, or the one with
        a list."""
        if named is not None:
            return tuple(each.strip() for each in named.split(","))
        matches = {each: match for each in there if (match := NUMBERED.fullmatch(each.strip()))}
        if CHOICES in there or not matches:
            return (CHOICES,)
        return tuple(sorted(matches, key=lambda column: int(matches[column][2])))

    def text_names(self, columns: Columns, example: Example) -> tuple[str, ...]:
        """Return a name for each choice, if they were in one column."""
        question, *choices = columns.texts
        if len(choices) == len(example) - 1:
            return columns.texts
        return question, *(f"{choices[0]}_{number}" for number in range(len(example) - 1))

    def text_counts(self, columns: int | None) -> tuple[int, int | None]:
        """Return a question with FEWEST choices, or more."""
        return 1 + FEWEST, None

    def read_texts(self, values: Mapping[str, object], columns: Sequence[str]) -> Example:
        question, *more = columns
        if len(more) > 1:
            choices = tuple(text_of_cell(values, column) for column in more)
        else:
            choices = _listed(values, more[0])
        if len(set(choices)) < len(choices):
            twice = next(each for each in choices if choices.count(each) > 1)
            raise CellError(more[-1], f"{shown(twice)} occurs twice. Choices must differ")
        return text_of_cell(values, question), *choices

    def told_apart_by(self, example: Example) -> Example:
        """Return the choices, so that a question and its mirror (as in COPA) stay together."""
        return tuple(sorted(example[1:]))

    def check_beside(self, example: Example, first: Example, columns: Columns) -> None:
        if len(example) != len(first):
            raise CellError(
                columns.texts[-1],
                f"{len(example) - 1} choices, and the first question has {len(first) - 1}. All "
                "questions of a task need the same number",
            )

    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Choice]:
        example = self.read_texts(values, columns.texts)
        _, *choices = example
        label = self.read_label(values, columns.label)
        first = _first_number(columns.texts[1:])
        return example, Choice(_number_of(label, choices, first, columns.label), len(choices))

    def label_names(self, found: Sequence[Choice]) -> tuple[str, ...]:  # type: ignore[override]
        """Return the numbers of the choices, from 0."""
        return tuple(map(str, range(found[0].choices)))

    def number(self, label: Choice, numbers: Mapping[str, int]) -> int:  # type: ignore[override]
        return numbers[str(label.number)]

    def output_names(self, labels: Sequence[str]) -> tuple[str, ...]:
        """Return the name of the one output."""
        return ("choice",)

    def edge_examples(self, examples: Sequence[Example], tokens: int) -> tuple[Example, Example]:
        """Return an example of few words, and one of more than `tokens` tokens."""
        short, long = super().edge_examples([(question,) for question, *_ in examples], tokens)
        choices = examples[0][1:]
        return (*short, *first_words(choices)), (*long, *choices)

    def encoder(
        self, tokenizer: PreTrainedTokenizerBase | FileTokenizer, max_length: int | None = None
    ) -> Tokenize:
        return TokenizeChoices(tokenizer, max_length)

    def logits_shape(self, batch: Batch, labels: int) -> tuple[int, ...]:
        """Return a score for each row; for an endpoint, one for each choice."""
        return (len(batch), labels) if batch.owners is None else (len(batch.owners), 1)

    def joined(self, rows: Sequence[Outputs]) -> Outputs:
        """Return the scores of a question's choices as one row, (1, choices)."""
        return Outputs(np.concatenate([each.logits for each in rows], axis=1), rows[0].places)

    def response(
        self,
        outputs: Sequence[Outputs],
        examples: Sequence[Example],
        labels: npt.NDArray[np.object_],
        texts: Sequence[tuple[str, ...]],
    ) -> dict[str, npt.NDArray[Any]]:
        tensors = super().response(outputs, examples, labels, texts)
        chosen = (int(each.logits[0].argmax()) for each in outputs)
        pairs = zip(examples, chosen, strict=True)
        answers = [[example[1 + number].encode()] for example, number in pairs]
        return {
            "LABEL": tensors["LABEL"],
            "CHOICE": np.array(answers, dtype=np.object_),
            **{name: tensors[name] for name in ("SCORE", "LOGITS")},
        }

    def lines(self, labels: Sequence[str], scores: Sequence[str], example: Example) -> list[str]:
        """Return one line for a question, with the number and the text of the choice."""
        (label,), (question, *choices) = labels, example
        chosen = choices[int(label)] if label.isdecimal() else ""
        return [f"{label}\t{scores[0]}\t{chosen}\t{question}"]


def _listed(values: Mapping[str, object], column: str) -> tuple[str, ...]:
    cell = usable_cell(values, column)
    if not isinstance(cell, list | tuple):
        raise CellError(
            column,
            f"{shown(cell)} is not a list. Give a list of texts in JSONL or Parquet, or columns "
            "choice_0, choice_1, ...",
        )
    choices = tuple(checked_text(each, column) for each in cell)
    if len(choices) < FEWEST:
        raise CellError(column, f"{len(choices)} choices. A question needs at least {FEWEST}")
    return choices


def _first_number(columns: Sequence[str]) -> int:
    """Return the number of the first choice in the column names, or 0."""
    match = NUMBERED.fullmatch(columns[0].strip())
    return int(match[2]) if match else 0


def _number_of(label: str, choices: Sequence[str], first: int, column: str) -> int:
    """Return the index of the correct choice, given its text, number or letter.

    Raises:
        CellError: the label is none of these, or ambiguous.
    """
    numbers = {str(first + place): place for place in range(len(choices))}
    letters = {LETTERS[place]: place for place in range(min(len(choices), len(LETTERS)))}
    texts = {text: place for place, text in enumerate(choices)}
    found = {
        names[given]
        for names, given in ((numbers, label), (letters, label.upper()), (texts, label))
        if given in names
    }
    if len(found) == 1:
        return found.pop()
    known = f"numbers {first} to {first + len(choices) - 1}, letters A to {max(letters)}"
    if not found:
        raise CellError(
            column,
            f"{shown(label)} is not one of the {len(choices)} choices. Give its number, its letter "
            f"or its text ({known})",
        )
    raise CellError(
        column,
        f"{shown(label)} is the text of one choice, and the number or letter of another. Give an "
        f"unambiguous one ({known})",
    )


MULTIPLE_CHOICE = MultipleChoice()
