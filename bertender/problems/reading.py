"""Reading: examples and labels of a kind of problem in data files."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from bertender.core.errors import ConfigError, DataError
from bertender.metrics.metric import NO_LABEL
from bertender.text.batch import Example, is_blank, to_examples

FILL_IN = "Fill it in, or leave the row out"
NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""NUL, and lone surrogates, which JSON allows but tokenizers refuse."""
SHOWN_CHARACTERS = 60
"""Most characters of a value to show in a message."""

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


class Reading(ABC, Generic[Target]):
    """The data of a kind of problem.

    `Target` is an example's label: a label number, one for each word, a truth value for each label,
    or a number.
    """

    columns: Columns
    """Default names of columns."""

    @abstractmethod
    def read(self, values: Mapping[str, object], columns: Columns) -> tuple[Example, Any]:
        """Return the example of a file's row, and its label or labels in the file.

        Raises:
            CellError: a cell cannot be used.
        """

    @abstractmethod
    def label_names(self, found: Sequence[Any]) -> tuple[str, ...]:
        """Return the labels of a task, in the order of the logits, given those of all its rows."""

    # labels: the defaults are for data without label names, such as numbers

    names_labels: bool = True
    """Its data have names of labels, unlike numbers and answers."""
    places_are_labels: bool = False
    """Labels are numbers of choices, whose texts differ by example. A model has one output, for any
    number of choices."""

    def number(self, label: Any, numbers: Mapping[str, int]) -> Target:
        """Return the target of a row's label: by default the label itself.

        Raises:
            KeyError: `numbers` lacks a name.
        """
        target: Target = label
        return target

    def by_names(self, target: Target, labels: Sequence[str]) -> Any:
        """Return a target with the names of its labels: by default unchanged."""
        return target

    def labels_of(self, target: Target) -> Sequence[int]:
        """Return the numbers of a target's labels: by default none, as numbers and answers have no
        classes."""
        return ()

    def unlabelled(self, example: Example) -> Any:
        """Return the target of an unlabelled example."""
        return NO_LABEL

    # columns of a file

    takes_pairs: bool = False
    """An example may have a second text."""
    reads_pairs: bool = False
    """Its data are pairs of texts, possibly without labels."""
    takes_list: bool = False
    """An example ends in a list of texts of any number."""
    labels_words: bool = False
    """An example is a sentence of words, each with a label."""

    def usual_columns(self, there: Sequence[str]) -> Columns:
        """Return the columns to read where the user names none, given those of a file."""
        return self.columns

    def more_columns(self, named: str | None, there: Sequence[str]) -> tuple[str, ...]:
        """Return the columns of more texts, given the columns that the user named and those of the
        file."""
        return () if named is None else (named,)

    def label_columns(self, column: str) -> tuple[str, ...]:
        """Return the label columns, given those that the user named."""
        return (column,)

    def text_names(self, columns: Columns, example: Example) -> tuple[str, ...]:
        """Return a name for each text of an example, given its columns."""
        return columns.texts

    def read_texts(self, values: Mapping[str, object], columns: Sequence[str]) -> Example:
        """Return the texts of a row of a file without labels.

        Raises:
            CellError: a cell cannot be used.
        """
        return tuple(self.text_of_cell(values, column) for column in columns)

    def text_of_cell(self, values: Mapping[str, object], column: str) -> str:
        """Return the text in a cell; raise CellError if there is none."""
        return text_of_cell(values, column)

    def text_counts(self, columns: int | None) -> tuple[int, int | None]:
        """Return the fewest and the most texts of an example; None for any number.

        Args:
            columns: number of the task's text columns; None for a model that records none.
        """
        return (1, 2) if columns is None else (columns, columns)

    def check_columns(self, named: Sequence[str], columns: int | None) -> None:
        """Raise ConfigError where a file's text columns are more or fewer than the model reads.

        Args:
            named: the columns of the file.
            columns: as in `text_counts`.
        """
        fewest, most = (1, 1) if self.labels_words else self.text_counts(columns)
        if most is not None and not fewest <= len(named) <= most:
            texts = "text" if most == 1 else "texts"
            advice = "Leave --pair-column out" if len(named) > most else "Name it by --pair-column"
            raise ConfigError(
                f"the columns are {', '.join(named)}, and the model reads {most} {texts} an "
                f"example. {advice}, or give a model of {len(named)}."
            )

    # examples of several rows, and examples among others

    def part_of(self, values: Mapping[str, object], columns: Sequence[str]) -> str | None:
        """Return the key of a row's example, which its rows share; None for a row that is an
        example."""
        return None

    def whole(self, parts: Sequence[tuple[Example, Any]], columns: Columns) -> tuple[Example, Any]:
        """Return the example, and its label, of the rows with the same `part_of`.

        Raises:
            CellError: the rows do not fit together.
        """
        (own,) = parts
        return own

    def to_learn(self, example: Example, target: Target) -> tuple[Example, Target]:
        """Return the part of a training example that is used for training."""
        return example, target

    def told_apart_by(self, example: Example) -> Example:
        """Return the texts that assign an example to a split: examples with equal texts stay
        together."""
        return example

    def check_beside(self, example: Example, first: Example, columns: Columns) -> None:
        """Raise CellError if an example does not fit the task's first one."""


def text_of_cell(values: Mapping[str, object], column: str) -> str:
    """Return the stripped text of a cell.

    Raises:
        CellError: the cell is missing, empty, invisible, or not text.
    """
    return visible_text(usable_cell(values, column), column).strip()


def visible_text(value: object, column: str) -> str:
    """Return a value unchanged; raise CellError if it is not text, or has no visible character."""
    text = checked_text(value, column)
    if is_blank(text):
        raise CellError(column, f"{shown(text)} has no visible character. {FILL_IN}")
    assert isinstance(value, str)
    return value


def checked_text(value: object, column: str) -> str:
    """Return a stripped value; raise CellError if it is not text."""
    if not isinstance(value, str):
        raise CellError(column, f"{shown(value)} is not text. Give a string")
    if NOT_TEXT.search(value):
        raise CellError(column, "characters that are not text (is it UTF-16, or binary?)")
    text = value.strip()
    if not text:
        raise CellError(column, f"empty. {FILL_IN}")
    return text


def first_words(texts: Sequence[str]) -> list[str]:
    """Return the first words of some texts, as few as tell those apart that differ: between equal
    ones, rounding would decide."""
    words = [text.split() or ["a"] for text in texts]
    firsts: list[str] = []
    for count in range(1, max(map(len, words), default=0) + 1):
        firsts = [" ".join(own[:count]) for own in words]
        if len({*firsts}) == len({*map(tuple, words)}):
            break
    return firsts


def usable_cell(values: Mapping[str, object], column: str) -> object:
    """Return a cell; raise CellError if it is missing or empty."""
    if column not in values:
        raise CellError(column, f"missing; this row has {', '.join(map(repr, values))}")
    value = values[column]
    if value is None or (isinstance(value, float) and math.isnan(value)):
        raise CellError(column, f"missing value ({value}). {FILL_IN}")
    return value


ZEROS = re.compile(r"(?<=\d)\.0+$")


def whole_number(value: object) -> str:
    """Return a cell as text, a whole number without a fraction: pandas writes 8 as 8.0 into a
    column with empty cells."""
    return ZEROS.sub("", str(value).strip())


def shown(value: object) -> str:
    """Return a value for a message, shortened."""
    whole = repr(value)
    return whole if len(whole) <= SHOWN_CHARACTERS else f"{whole[:SHOWN_CHARACTERS]}..."


def checked_examples(values: object, problem: Reading[Any], columns: int | None) -> list[Example]:
    """Return the texts that a program gives as examples, by the rules for those of files.

    Args:
        values: texts, and tuples or lists of texts.
        problem: kind of problem of the model.
        columns: number of the model's text columns; None for a model that records none.

    Raises:
        DataError: `values` is not a list of texts, a text cannot be used, or a row has too few or
            too many of them.
    """
    examples = to_examples(values)
    fewest, most = problem.text_counts(columns)
    if most is not None and fewest != most and examples:  # then all rows have as many as the first
        fewest = most = min(max(len(examples[0]), fewest), most)
    checked = checked_text if problem.labels_words else visible_text
    for row, example in enumerate(examples):
        if len(example) < fewest or (most is not None and len(example) > most):
            texts = "text" if len(example) == 1 else "texts"
            wanted = f"{fewest}{' or more' if most is None else ''}"
            raise DataError(
                f"row {row} has {len(example)} {texts}, and the model reads {wanted} an example. "
                f"Give {'one text' if most == 1 else f'a tuple of {wanted}'} a row."
            )
        for text in example:
            try:
                checked(text, "")
            except CellError as error:
                raise DataError(f"row {row}: {error.problem}.") from None
    return examples
