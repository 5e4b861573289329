"""The wire format: names, texts to and from byte arrays (batch, texts), and tensors as bytes.

The bytes of a tensor are in the Open Inference Protocol's binary forms (`raw_input_contents` in
gRPC, the binary part of an HTTP body): values in row-major order, little endian; each value of
BYTES is preceded by its length, in 4 bytes.

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
"""Default name of the served model."""

CANDIDATE_SUFFIX = "-candidate"
"""Suffix for a model that may replace the one without the suffix."""

ENCODER_NAME = "classifier-encoder"
"""The Triton model that runs the graph if the Python backend does not."""

ENCODER_OUTPUT = "logits"
"""Output of that model."""

ADMIN_HEADER = "bertender-admin-token"
"""HTTP header, and gRPC metadata key, with the administrator's token."""
GRPC_ADMIN_HEADER = f"triton-grpc-protocol-{ADMIN_HEADER}"
"""The metadata key as used by Triton and its clients."""

HEADER_LENGTH = "inference-header-content-length"
"""Header with the number of JSON bytes in a body; the others are tensors."""

WORKSPACE_VARIABLE = "BERTENDER_SERVE_WORKSPACE"
"""Environment variable with the folder of a stub's server."""

CANDIDATE_PREFIX = "candidate-"
"""Prefix of a stub's notes there. The supervisor imports nothing, and repeats these names."""

TEXT, TEXT_PAIR, CHOICE = "TEXT", "TEXT_PAIR", "CHOICE_{}"

PASSAGES = "PASSAGES"
"""An input with any number of texts per row; shorter rows are padded with empty texts."""

MOST_PASSAGES = 4096
"""Most passages of a row."""

WATCH_CALLER = "bertender watch"
"""Caller of the watch's probes; they have room in a full queue. No key has a space in its name."""

TRUNCATE = "truncate"
"""Parameter of a request, true or false: truncate texts that exceed the model's input."""

TRUNCATED = "TRUNCATED"
"""Output if a request asks for truncation: which of its texts were truncated, bool (batch, 1)."""

ABSTAINED = "ABSTAINED"
"""Output of a server with --abstain-below: which texts are less probable, bool (batch, 1)."""

TOKENS = "TOKENS"
"""Output if the door asks for it, which keeps it: tokens of each text, int32 (batch, 1)."""

ROW = re.compile(
    r"(?:\A|refused: (?:\[[\w.]+\] )?)"
    rf"(?:({TEXT}|{TEXT_PAIR}|{PASSAGES}|{CHOICE.format('[0-9]+')}) )?row (\d+) (.*)",
    re.DOTALL,
)
"""Form of a message about a row of a request; matched only at its beginning, since other errors,
such as those of a failing model, may also speak of rows."""

BytesArray = npt.NDArray[np.object_]


@dataclass(frozen=True)
class RowRefusal:
    """A row of a request that cannot be used, by its index in the request."""

    row: int
    column: int | None
    """The faulty text; None if the row as a whole is faulty."""
    reason: str


def row_in(message: str) -> RowRefusal | None:
    """Return the row that an error of client or server is about, or None."""
    if (match := ROW.search(message)) is None:
        return None
    name, row, reason = match.groups()
    if name is None:
        return RowRefusal(int(row), None, f"the row {reason}")
    columns = {TEXT: 0, TEXT_PAIR: 1, PASSAGES: 1}
    column = columns[name] if name in columns else 1 + int(name.removeprefix(CHOICE.format("")))
    return RowRefusal(int(row), column, f"the text {reason}")


def with_later_row(message: str, rows: int) -> str:
    """Return the message of an error, its row counted from `rows` rows before its request."""
    if (match := ROW.search(message)) is None:
        return message
    start, end = match.span(2)
    return f"{message[:start]}{int(match[2]) + rows}{message[end:]}"


def input_names(text_columns: int, has_list: bool = False) -> tuple[str, ...]:
    """Return the input names for a text, a pair, a question and its choices, or a query and a list
    of passages."""
    if has_list:
        return (TEXT, PASSAGES)
    if text_columns <= len((TEXT, TEXT_PAIR)):
        return (TEXT, TEXT_PAIR)[:text_columns]
    return (TEXT, *(CHOICE.format(number) for number in range(text_columns - 1)))


def width_of(name: str) -> int:
    """Return the number of texts per row of an input; -1 for any number."""
    return -1 if name == PASSAGES else 1


def to_arrays(
    examples: Sequence[Example], text_columns: int, has_list: bool = False
) -> list[BytesArray]:
    """Return an array (batch, 1) of UTF-8 bytes for each text column; or, if an example ends in a
    list of texts, one for the first text and one (batch, passages) for the list.

    Raises:
        DataError: an example has too few or too many texts, or a text is empty or not Unicode.
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
    """Raise DataError if a row has too many passages."""
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
    """Return the texts of a row of PASSAGES without padding, but at least one."""
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
    "counted": ((bool,), "true or false"),
    "number": ((int,), "a whole number"),
    "abandon": ((int,), "a whole number"),
}
"""Field of `Wishes` -> types of its values, and their name in errors."""


@dataclass(frozen=True)
class Wishes:
    """Parameters of a request: the first is the client's, the others are the door's."""

    truncate: bool = False
    caller: str = ""
    """Name of the caller whose turn it takes."""
    wait_ms: float | None = None
    """Longest wait in the queue; None for the server's."""
    counted: bool = False
    """Whether its response has TOKENS."""
    number: int = 0
    """Number for abandoning it; 0 if it cannot be abandoned."""
    abandon: int = 0
    """Number of a request to abandon: the rest of it need not run."""

    @classmethod
    def parse(cls, parameters: str) -> Self:
        """Read a request's parameters from JSON, ignoring others.

        Raises:
            DataError: one of them has a wrong type.
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
        DataError: the text is empty, too long or not UTF-8; the message names input and row.
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
"""The protocol's datatypes besides BYTES, and numpy's names for them."""
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
        """Make a tensor from a numpy array; an array of objects contains bytes."""
        if array.dtype == np.object_:
            return cls(name, BYTES, array.shape, joined(array.reshape(-1).tolist()))
        datatype = next(key for key, dtype in DATATYPES.items() if np.dtype(dtype) == array.dtype)
        return cls(name, datatype, array.shape, np.ascontiguousarray(array).tobytes())

    def array(self) -> npt.NDArray[Any]:
        """Return the values as a numpy array; BYTES as objects.

        Raises:
            ValueError: the number of bytes does not match the shape.
        """
        if self.datatype != BYTES:
            return np.frombuffer(self.data, np.dtype(DATATYPES[self.datatype])).reshape(self.shape)
        values = np.empty(math.prod(self.shape), np.object_)
        values[:] = split(self.data, len(values))
        return values.reshape(self.shape)


def joined(values: Iterable[bytes]) -> bytes:
    """Return the bytes of a BYTES tensor, given its values."""
    parts: list[bytes] = []
    for value in values:
        parts += (LENGTH.pack(len(value)), value)
    return b"".join(parts)


def split(data: bytes, count: int) -> Sequence[bytes]:
    """Return the values of a BYTES tensor.

    Raises:
        ValueError: there are more or fewer values than `count`, or one extends beyond the data.
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
