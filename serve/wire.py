"""Wire format: tensor names, and texts to and from arrays of bytes (batch, 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError

if TYPE_CHECKING:  # at run time it would load transformers into a client that only asks
    from bertender.text.example import Example

__all__ = ["INPUT_NAMES", "MODEL_NAME", "from_arrays", "to_arrays"]

MODEL_NAME = "classifier"
INPUT_NAMES = ("TEXT", "TEXT_PAIR")

BytesArray = npt.NDArray[np.object_]


def to_arrays(examples: Sequence[Example], text_columns: int) -> list[BytesArray]:
    """Return one array (batch, 1) of UTF-8 bytes for each text column.

    Raises:
        DataError: an example has too few or too many texts, or a text is empty or no Unicode.
    """
    rows = [_to_bytes(row, example, text_columns) for row, example in enumerate(examples)]
    return [
        np.array([[row[column]] for row in rows], dtype=np.object_)
        for column in range(text_columns)
    ]


def from_arrays(arrays: Sequence[BytesArray]) -> tuple[Example, ...]:
    """Return the examples of a request, from one array (batch, 1) for each text column.

    Raises:
        DataError: a text is empty or not UTF-8; the message names input and row.
    """
    columns = [
        [_to_text(name, row, value) for row, value in enumerate(array.reshape(-1))]
        for name, array in zip(INPUT_NAMES, arrays, strict=False)
    ]
    return tuple(zip(*columns, strict=True))


def _to_bytes(row: int, example: Example, text_columns: int) -> list[bytes]:
    if len(example) != text_columns:
        raise DataError(
            f"row {row} has {len(example)} texts, but the model takes {text_columns} an example."
        )
    try:
        values = [text.encode() for text in example]
    except UnicodeEncodeError as error:
        raise DataError(f"row {row} holds a lone surrogate, which is not text: {error}") from None
    for name, value in zip(INPUT_NAMES, values, strict=False):
        _to_text(name, row, value)
    return values


def _to_text(name: str, row: int, value: bytes) -> str:
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} row {row} is not UTF-8: {error}. Send UTF-8 text.") from None
    if not text.strip():
        raise DataError(f"{name} row {row} is empty: there is nothing to classify. Leave it out.")
    return text
