"""Answers as data files have them: SQuAD's lists, those of `datasets`, or one a row of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from bertender.problems.reading import FILL_IN, NOT_TEXT, CellError, shown, usable_cell
from bertender.text.batch import is_blank

Answers = tuple[tuple[str, int], ...]
"""Texts, and the character of the context where each begins; none where there is no answer."""

TEXT, START = "text", "answer_start"
"""Of an answer, in SQuAD's files."""
ANSWER = "answer"
"""The text, in a table with an answer a row."""


def read_context(values: Mapping[str, object], column: str) -> str:
    """Return a context as it stands, white space included.

    Raises:
        CellError: it is missing, nothing that can be seen, or not text.
    """
    value = usable_cell(values, column)
    if not isinstance(value, str):
        raise CellError(column, f"{shown(value)} is not text. Give a string")
    if NOT_TEXT.search(value):
        raise CellError(column, "characters that are not text (is it UTF-16, or binary?)")
    if is_blank(value):
        raise CellError(column, f"{shown(value)} has no character that can be seen. {FILL_IN}")
    return value


def read_answers(
    values: Mapping[str, object], columns: Sequence[str], context: str
) -> Iterable[tuple[str, int]]:
    """Yield the answers of a row.

    Args:
        values: of the row.
        columns: that of the answers, or those of an answer's text and of where it starts.
        context: which must have the answers where they say.

    Raises:
        CellError: a cell cannot be used, or an answer is not there.
    """
    column = columns[0]
    if column not in values:
        usable_cell(values, column)  # which says so
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
    """Yield text and start of each answer of a list."""
    if isinstance(cell, Mapping) and {TEXT, START} <= {*cell}:  # as `datasets` has them
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
            f"{shown(cell)} is no list of answers. Give [{{'{TEXT}': ..., '{START}': ...}}], which "
            f"is empty where there is none; or name two columns, --label-column {ANSWER},{START}",
        )
    for each in cell:
        if not isinstance(each, Mapping) or not {TEXT, START} <= {*each}:
            raise CellError(column, f"{shown(each)} is no answer with {TEXT} and {START}")
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
    text = f"{value:g}" if isinstance(value, float) else str(value).strip()
    if isinstance(value, bool) or not text.isdecimal():
        raise CellError(column, f"{shown(value)} is no number of a character, from 0 on")
    return int(text)


def _check_place(text: str, start: int, context: str, column: str) -> None:
    there = context[start : start + len(text)]
    if there == text:
        return
    place = context.find(text)
    found = f"It begins at {place}" if place >= 0 else "It is nowhere in the context"
    raise CellError(column, f"the text at {start} is {shown(there)}, not {shown(text)}. {found}")
