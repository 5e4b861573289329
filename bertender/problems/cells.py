"""Cells of data files: what is text, and what is missing."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from bertender.problems.problem import CellError

__all__ = ["FILL_IN", "checked_text", "text_of_cell", "usable_cell"]

FILL_IN = "Fill it in, or leave the row out"
NOT_TEXT = re.compile("[\0\ud800-\udfff]")
"""NUL, and halves of surrogate pairs, which JSON can hold and no tokenizer takes."""


def text_of_cell(values: Mapping[str, object], column: str) -> str:
    """Return the text of a cell without the white space around it.

    Raises:
        CellError: it is missing, empty or not text.
    """
    return checked_text(usable_cell(values, column), column)


def checked_text(value: object, column: str) -> str:
    """Return a value without the white space around it, or raise CellError where it is not text."""
    if not isinstance(value, str):
        raise CellError(column, f"{value!r} is not text")
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
