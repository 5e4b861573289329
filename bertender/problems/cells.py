"""Cells of data files: what is text, and what is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from bertender.problems.problem import CellError
from bertender.text.example import is_blank

__all__ = ["FILL_IN", "checked_text", "shown", "text_of_cell", "usable_cell"]

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
