"""Rows of the table that a graph looks tokens up in, for a check of its tokenizer's numbers.

An endpoint has no package onnx, ONNX Runtime tells nothing of a graph's constants, and its look-up
in a table of 4 bits reads on past the end. So the few fields of onnx.proto that say it are read
here from the mapped file, weights passed over.

https://protobuf.dev/programming-guides/encoding, https://github.com/onnx/onnx/blob/main/onnx/onnx.proto
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bertender.text.batch import check_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertender.text.tokenizer_file import FileTokenizer

__all__ = ["check_tokens", "rows_of_tokens"]

GRAPH = 7
"""Number of the field of a model."""
NODE, INITIALIZER = 1, 5
"""Of a graph."""
INPUT, OUTPUT, OPERATOR = 1, 2, 4
"""Of a node."""
DIMS, NAME = 1, 8
"""Of a tensor."""
VARINT, FIXED_64, BYTES, FIXED_32 = 0, 1, 2, 5
"""Types of fields on the wire."""

RENAMES = ("Cast", "Identity")
LOOKUPS = ("Gather", "GatherBlockQuantized")
TOKENS = "input_ids"


class _Node(NamedTuple):
    operator: str
    inputs: list[str]
    outputs: list[str]


def check_tokens(graph: Path, tokenizer: PreTrainedTokenizerBase | FileTokenizer) -> None:
    """Raise ModelError where a tokenizer has tokens that a graph's table has no row for."""
    if (rows := rows_of_tokens(graph)) is not None:
        check_rows(tokenizer, rows, graph)


def rows_of_tokens(graph: Path) -> int | None:
    """Return the rows of the table that a graph looks its tokens up in; None where none is found.

    A file that is no graph has none, too: what opens it says so.
    """
    with graph.open("rb") as file:
        try:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
                return _rows(mapped)
        except (ValueError, IndexError):  # it is empty, or ends within a field
            return None


def _rows(data: mmap.mmap) -> int | None:
    nodes: list[_Node] = []
    rows: dict[str, int] = {}
    for start, end in _parts(data, (0, len(data)), GRAPH):
        nodes += [_node(data, part) for part in _parts(data, (start, end), NODE)]
        for part in _parts(data, (start, end), INITIALIZER):
            name, dims = _tensor(data, part)
            if dims:
                rows[name] = dims[0]
    makers = {output: node for node in nodes for output in node.outputs}
    tokens = {TOKENS}
    for node in nodes:
        if node.operator in RENAMES and node.inputs[0] in tokens:
            tokens.update(node.outputs)
        if node.operator in LOOKUPS and node.inputs[1] in tokens:
            return _rows_of(node.inputs[0], rows, makers)
    return None


def _rows_of(table: str, rows: Mapping[str, int], makers: Mapping[str, _Node]) -> int | None:
    """Return the rows of a constant, or of what is computed from it alone (a table of integers)."""
    while table not in rows and table in makers:
        table = makers[table].inputs[0]
    return rows.get(table)


def _node(data: mmap.mmap, part: tuple[int, int]) -> _Node:
    texts: dict[int, list[str]] = {INPUT: [], OUTPUT: [], OPERATOR: []}
    for number, (start, end) in _fields(data, part):
        if number in texts:
            texts[number].append(data[start:end].decode())
    return _Node("".join(texts[OPERATOR]), texts[INPUT], texts[OUTPUT])


def _tensor(data: mmap.mmap, part: tuple[int, int]) -> tuple[str, list[int]]:
    """Return the name of a constant, and its first dimension in a list; empty of a single number.

    Dimensions are written one by one, or all in one field.
    """
    name, dims = "", list[int]()
    for number, (start, end) in _fields(data, part):
        if number == DIMS and start < end:
            dims.append(_varint(data, start)[0])
        elif number == NAME:
            name = data[start:end].decode()
    return name, dims[:1]


def _parts(data: mmap.mmap, part: tuple[int, int], wanted: int) -> Iterator[tuple[int, int]]:
    return (place for number, place in _fields(data, part) if number == wanted)


def _fields(data: mmap.mmap, part: tuple[int, int]) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the number of each field of a message, and from where to where its value lies."""
    place, end = part
    while place < end:
        key, place = _varint(data, place)
        kind = key & 7
        if kind == BYTES:
            size, place = _varint(data, place)
            after = place + size
        elif kind == VARINT:
            _, after = _varint(data, place)
        elif kind in (FIXED_64, FIXED_32):
            after = place + (8 if kind == FIXED_64 else 4)
        else:
            raise ValueError(f"field of type {kind}")
        yield key >> 3, (place, after)
        place = after


def _varint(data: mmap.mmap, place: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, the lowest first, and the place after it."""
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
