"""The wire format: names, texts to and from arrays of bytes (batch, texts), and tensors as bytes.

The bytes of a tensor are those of the Open Inference Protocol's binary forms (`raw_input_contents`
of gRPC, the binary part of an HTTP body): values in rows, little endian; each value of BYTES has
its length before it, in 4 bytes.

https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from bertender.core.errors import DataError
from bertender.text.batch import Example, is_blank

MODEL_NAME = "classifier"
"""Name of the served model where no other is set."""

CANDIDATE_SUFFIX = "-candidate"
"""Ends the name of a model that may take the place of the one without it."""

ENCODER_NAME = "classifier-encoder"
"""The Triton model that runs the graph where the Python backend does not."""

ENCODER_OUTPUT = "logits"
"""Output of that model."""

ADMIN_HEADER = "bertender-admin-token"
"""Header of HTTP, and key of gRPC's metadata, with the administrator's token."""
GRPC_ADMIN_HEADER = f"triton-grpc-protocol-{ADMIN_HEADER}"
"""The key as Triton and its clients have it."""

WORKSPACE_VARIABLE = "BERTENDER_SERVE_WORKSPACE"
"""Environment variable with the folder of a stub's server."""

CANDIDATE_PREFIX = "candidate-"
"""Begins the names of a stub's notes there. The supervisor imports nothing, and repeats them."""

TEXT, TEXT_PAIR, CHOICE = "TEXT", "TEXT_PAIR", "CHOICE_{}"

PASSAGES = "PASSAGES"
"""An input with any number of texts a row; a row with fewer than others ends in empty ones."""

MOST_PASSAGES = 4096
"""Of a row."""

WATCH_CALLER = "bertender watch"
"""Whose requests see whether the model answers; a full queue has room for them. No key has a space
in its name."""

TRUNCATE = "truncate"
"""Parameter of a request, true or false: cut texts that are longer than the model's input."""

TRUNCATED = "TRUNCATED"
"""Output of a request that asks for truncation: which of its texts were cut, bool (batch, 1)."""

ABSTAINED = "ABSTAINED"
"""Output of a server with --abstain-below: which texts are less probable, bool (batch, 1)."""

ROW = re.compile(
    r"(?:\A|refused: (?:\[[\w.]+\] )?)"
    rf"(?:({TEXT}|{TEXT_PAIR}|{PASSAGES}|{CHOICE.format('[0-9]+')}) )?row (\d+) (.*)",
    re.DOTALL,
)
"""How a message names a row of a request, and what is wrong with it: at its beginning, since a
library's error, such as one of a failing model, may speak of rows, too."""

BytesArray = npt.NDArray[np.object_]


@dataclass(frozen=True)
class RowRefusal:
    """The row of a request that cannot be used, by its number in the request."""

    row: int
    column: int | None
    """The text that is at fault; None where it is the row as a whole."""
    reason: str


def row_in(message: str) -> RowRefusal | None:
    """Return the row that an error message names, of the client or of the server; None for none."""
    if (match := ROW.search(message)) is None:
        return None
    name, row, reason = match.groups()
    if name is None:
        return RowRefusal(int(row), None, f"the row {reason}")
    columns = {TEXT: 0, TEXT_PAIR: 1, PASSAGES: 1}
    column = columns[name] if name in columns else 1 + int(name.removeprefix(CHOICE.format("")))
    return RowRefusal(int(row), column, f"the text {reason}")


def input_names(text_columns: int, has_list: bool = False) -> tuple[str, ...]:
    """Return the names of the inputs for a text, a pair, a question and its choices, or a query
    and a list of passages."""
    if has_list:
        return (TEXT, PASSAGES)
    if text_columns <= len((TEXT, TEXT_PAIR)):
        return (TEXT, TEXT_PAIR)[:text_columns]
    return (TEXT, *(CHOICE.format(number) for number in range(text_columns - 1)))


def width_of(name: str) -> int:
    """Return how many texts a row of an input has; -1 for any number."""
    return -1 if name == PASSAGES else 1


def to_arrays(
    examples: Sequence[Example], text_columns: int, has_list: bool = False
) -> list[BytesArray]:
    """Return one array (batch, 1) of UTF-8 bytes for each text column; or, where an example ends in
    a list of texts, one for the first and one (batch, passages) for the list.

    Raises:
        DataError: an example has too few or too many texts, or a text is empty or no Unicode.
    """
    if has_list:
        return _with_lists(examples)
    names = input_names(text_columns)
    columns: list[list[list[bytes]]] = [[] for _ in names]
    for row, example in enumerate(examples):
        if len(example) != text_columns:
            texts = "text" if len(example) == 1 else "texts"
            raise DataError(
                f"row {row} has {len(example)} {texts}, but the model takes {text_columns} an "
                f"example.{_how_many(text_columns)}"
            )
        for name, text, column in zip(names, example, columns, strict=True):
            column.append([_encoded(name, row, text)])
    return [np.array(column, dtype=np.object_).reshape(-1, 1) for column in columns]


def _with_lists(examples: Sequence[Example]) -> list[BytesArray]:
    longest = max(map(len, examples), default=1) - 1
    queries = np.empty((len(examples), 1), dtype=np.object_)
    lists = np.full((len(examples), max(longest, 1)), b"", dtype=np.object_)
    for row, example in enumerate(examples):
        if len(example) < 2:
            raise DataError(
                f"row {row} has {len(example)} text, but the model takes a query and its passages. "
                "Give a tuple of the query and one passage or more."
            )
        check_passages(row, len(example) - 1)
        query, *passages = example
        queries[row, 0] = _encoded(TEXT, row, query)
        for place, passage in enumerate(passages):
            lists[row, place] = _encoded(PASSAGES, row, passage)
    return [queries, lists]


def check_passages(row: int, count: int) -> None:
    """Raise DataError for more passages than a row may have."""
    if count > MOST_PASSAGES:
        raise DataError(
            f"{PASSAGES} row {row} has {count} texts, allowed {MOST_PASSAGES}. Send several "
            "requests: scores do not depend on the other passages."
        )


def _encoded(name: str, row: int, text: str) -> bytes:
    try:
        value = text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} row {row} holds a lone surrogate, which is not text: {error}"
        ) from None
    to_text(name, row, value)
    return value


def listed(values: Sequence[bytes]) -> Sequence[bytes]:
    """Return the texts of a row of PASSAGES, without the empty ones at its end; one stays."""
    last = next((place for place in range(len(values), 1, -1) if values[place - 1]), 1)
    return values[:last]


def from_arrays(
    arrays: Sequence[BytesArray], max_text_bytes: int | None = None, has_list: bool = False
) -> tuple[Example, ...]:
    """Return the examples of a request, from the arrays of `to_arrays`.

    Raises:
        DataError: a text is empty, too long or not UTF-8, and the message names input and row; or
            there is no text.
    """
    if has_list:
        queries, lists = arrays
        rows = from_arrays([queries], max_text_bytes)
        return tuple(
            (*own, *(to_text(PASSAGES, row, each, max_text_bytes) for each in listed(values)))
            for row, (own, values) in enumerate(zip(rows, lists.tolist(), strict=True))
        )
    columns = [
        [to_text(name, row, value, max_text_bytes) for row, value in enumerate(array.reshape(-1))]
        for name, array in zip(input_names(len(arrays)), arrays, strict=True)
    ]
    if not all(columns):
        raise DataError("the request holds no text. Send one at least.")
    return tuple(zip(*columns, strict=True))


def _how_many(text_columns: int) -> str:
    if text_columns <= 1:
        return ""
    choices = text_columns - 1
    return " Give a tuple of two." if choices == 1 else f" Give a question and {choices} choices."


PARAMETER_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    TRUNCATE: ((bool,), "true or false"),
    "caller": ((str,), "a text"),
    "wait_ms": ((int, float), "a number"),
    "number": ((int,), "a whole number"),
    "abandon": ((int,), "a whole number"),
}
"""Field of `Wishes` -> the types of its values, and how an error names them."""


@dataclass(frozen=True)
class Wishes:
    """Parameters of a request: the first is a client's, the others are the door's."""

    truncate: bool = False
    caller: str = ""
    """Whose turn it takes."""
    wait_ms: float | None = None
    """Longest wait in the queue; None for that of the server."""
    number: int = 0
    """By which it can be abandoned; 0 where it cannot."""
    abandon: int = 0
    """Number of the request that this one is about: nothing more of that need run."""

    @classmethod
    def parse(cls, parameters: str) -> Self:
        """Read a request's parameters from JSON; others than these are ignored.

        Raises:
            DataError: one of them is not of its type.
        """
        values = json.loads(parameters or "{}")
        known = {name: values[name] for name in PARAMETER_TYPES if name in values}
        for name, value in known.items():
            types, named = PARAMETER_TYPES[name]
            if type(value) not in types:  # to `isinstance`, true is a number
                raise DataError(f"the parameter {name!r} is {value!r}; it must be {named}.")
        return cls(**known)


def to_text(name: str, row: int, value: bytes, max_text_bytes: int | None = None) -> str:
    """Return the text of a row, from its bytes.

    Raises:
        DataError: it is empty, too long or not UTF-8; the message names input and row.
    """
    if max_text_bytes is not None and len(value) > max_text_bytes:
        raise DataError(
            f"{name} row {row} has {len(value)} bytes, allowed {max_text_bytes}. Split the text, "
            "or serve it with a larger --max-text-bytes."
        )
    try:
        text = value.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{name} row {row} is not UTF-8: {error}. Send UTF-8 text.") from None
    if "\0" in text:
        raise DataError(f"{name} row {row} has a NUL character, which is not text. Leave it out.")
    if is_blank(text):
        raise DataError(f"{name} row {row} is empty: there is nothing to classify. Leave it out.")
    return text


DATATYPES: Mapping[str, str] = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "INT8": "i1",
    "INT16": "<i2",
    "INT32": "<i4",
    "INT64": "<i8",
    "FP16": "<f2",
    "FP32": "<f4",
    "FP64": "<f8",
}
"""Datatypes of the protocol, besides BYTES, and numpy's names for them."""
BYTES = "BYTES"
LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class Tensor:
    """A tensor with its values as bytes."""

    name: str
    datatype: str
    """BYTES, or a row of DATATYPES."""
    shape: tuple[int, ...]
    data: bytes

    @classmethod
    def of_array(cls, name: str, array: npt.NDArray[Any]) -> Tensor:
        """Make one of a numpy array; an array of objects holds bytes."""
        if array.dtype == np.object_:
            return cls(name, BYTES, array.shape, joined(array.reshape(-1).tolist()))
        datatype = next(key for key, dtype in DATATYPES.items() if np.dtype(dtype) == array.dtype)
        return cls(name, datatype, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> npt.NDArray[Any]:
        """Return the values as a numpy array; those of BYTES as objects.

        Raises:
            ValueError: the bytes are more or fewer than the shape says.
        """
        if self.datatype != BYTES:
            return np.frombuffer(self.data, np.dtype(DATATYPES[self.datatype])).reshape(self.shape)
        values = np.empty(math.prod(self.shape), np.object_)
        values[:] = split(self.data, len(values))
        return values.reshape(self.shape)


def joined(values: Iterable[bytes]) -> bytes:
    """Return the bytes of a tensor of BYTES."""
    parts: list[bytes] = []
    for value in values:
        parts += (LENGTH.pack(len(value)), value)
    return b"".join(parts)


def split(data: bytes, count: int) -> Sequence[bytes]:
    """Return the values of a tensor of BYTES.

    Raises:
        ValueError: there are more or fewer values than `count`, or one ends beyond the data.
    """
    values: list[bytes] = []
    place = 0
    while place < len(data) and len(values) < count:
        if place + LENGTH.size > len(data):
            raise ValueError(f"the length of value {len(values)} ends beyond the data")
        (length,) = LENGTH.unpack_from(data, place)
        place += LENGTH.size
        if place + length > len(data):
            raise ValueError(f"value {len(values)} of {length} bytes ends beyond the data")
        values.append(data[place : place + length])
        place += length
    if place < len(data) or len(values) < count:
        raise ValueError(f"{len(data)} bytes are not the {count} values of the shape")
    return values
