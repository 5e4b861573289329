"""HTTP bodies: read within limits, and inference requests and responses as JSON.

Bodies are inflated, and dropped if their client disconnects. Binary tensors may follow the JSON.

https://github.com/kserve/open-inference-protocol
https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_binary_data.md
"""

from __future__ import annotations

import asyncio
import functools
import math
import re
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import chain
from typing import TypeVar

import msgspec
from msgspec import Raw
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive

from serve.door.engine import Code, Model, RefusedError
from serve.door.requests import (
    BINARY_SIZE,
    INPUT_PARAMETERS,
    MOST_PARAMETER_BYTES,
    MOST_PARAMETERS,
    Asked,
    Draft,
    DraftTensor,
    binary_values,
    check_parameters,
    invalid,
    shown,
)
from serve.wire import BYTES, HEADER_LENGTH, Tensor, split

T = TypeVar("T")
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Content-Encoding -> zlib's window bits. `deflate` is zlib's own format."""


class ClientGoneError(RefusedError):
    """The client has closed the connection: nobody reads a response."""

    def __init__(self) -> None:
        super().__init__(Code.CANCELLED, "the client has gone")


@asynccontextmanager
async def body_of(
    headers: Headers, receive: Receive, most_bytes: int, hold: Callable[[int, int], None]
) -> AsyncIterator[bytes]:
    """Read and inflate a body, counting its bytes in memory while the block runs.

    Args:
        headers: headers of the request.
        receive: ASGI's receive function.
        most_bytes: largest size of the body, before and after inflating.
        hold: counts bytes in memory (below 0: freed bytes), given the body's bytes so far; refuses
            too many.

    Raises:
        RefusedError: the body is too large, or cannot be inflated.
        ClientGoneError: the connection ended first.
    """
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > most_bytes:
        raise _too_large(f"{length[:20]} bytes", most_bytes)
    inflate = _inflater(headers.get("content-encoding", "identity"))
    parts: list[bytes] = []
    held = sent = size = 0
    try:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            more = message.get("more_body", False)
            part: bytes = message.get("body", b"")
            sent += len(part)
            if inflate is not None:
                part = _inflated(inflate, part, most_bytes - size + 1)
            size += len(part)
            if max(sent, size) > most_bytes:  # empty blocks inflate to nothing
                raise _too_large("more bytes", most_bytes)
            hold(len(part), size)
            held += len(part)
            parts.append(part)
        if inflate is not None and not inflate.eof:
            raise invalid("the body is truncated, by its Content-Encoding.")
        body = b"".join(parts)
        parts.clear()
        yield body
    finally:
        hold(-held, 0)


def _too_large(size: str, most_bytes: int) -> RefusedError:
    return RefusedError(
        Code.TOO_LARGE,
        f"the body has {size}, allowed {most_bytes}. Send fewer or shorter texts in a request.",
    )


def _inflater(encoding: str) -> zlib._Decompress | None:
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return None
    if name not in WINDOW_BITS:
        raise invalid(f"the Content-Encoding is {shown(encoding)}, known: gzip, deflate.")
    return zlib.decompressobj(WINDOW_BITS[name])


def _inflated(inflater: zlib._Decompress, part: bytes, most_bytes: int) -> bytes:
    """Inflate a part of the body, up to `most_bytes` at a time."""
    try:
        inflated = inflater.decompress(part, most_bytes)
    except zlib.error as error:
        raise invalid(f"the body does not match its Content-Encoding: {error}.") from None
    if inflater.unused_data:
        raise invalid("the body goes on behind the end of its Content-Encoding.")
    return inflated


async def unless_gone(work: asyncio.Future[T], receive: Receive) -> T:
    """Return the result of work, which is cancelled if the client disconnects.

    Raises:
        ClientGoneError: the client has disconnected.
    """
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientGoneError
        return work.result()
    finally:
        gone.cancel()
        work.cancel()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def json_response(
    content: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return a JSON response."""
    body = msgspec.json.encode(content)
    return Response(body, status, headers=headers, media_type="application/json")


STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
"""A JSON string."""


class InputBody(msgspec.Struct):
    """An input of a request. Other fields are ignored."""

    name: str
    shape: tuple[int, int]
    datatype: str
    data: Raw = Raw()
    parameters: Raw = Raw()


class OutputBody(msgspec.Struct):
    """An output in a request."""

    name: str
    parameters: Raw = Raw()


class RequestBody(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[InputBody]
    outputs: list[OutputBody] | None = None
    id: str | None = None
    parameters: Raw = Raw()


REQUEST = msgspec.json.Decoder(RequestBody)
PARAMETERS = msgspec.json.Decoder(dict[str, bool | int | float | str | None])
FLAT = msgspec.json.Decoder(list[str])
NESTED = msgspec.json.Decoder(list[list[str]])


def read_request(body: bytes, header_length: str | None) -> Draft:
    """Read the body of an inference request.

    Args:
        body: the whole body.
        header_length: value of the header HEADER_LENGTH, if the request has one.

    Raises:
        RefusedError: INVALID: the body is not a request.
    """
    size = len(body)
    if header_length is not None:
        if not (header_length.isascii() and header_length.isdigit()) or len(header_length) > 12:
            raise invalid(f"the header {HEADER_LENGTH} is {shown(header_length)}, not a length.")
        size = int(header_length)
        if size > len(body):
            raise invalid(f"the header {HEADER_LENGTH} is {size}, but the body has {len(body)}.")
    read = _decoded(REQUEST, body[:size], "the body")
    place = size
    inputs: list[DraftTensor] = []
    for each in read.inputs:
        parameters = _parameters(each.parameters)
        check_parameters(parameters, INPUT_PARAMETERS, True, f"the input {shown(each.name)}")
        own: Callable[[int], Sequence[bytes]] = functools.partial(
            _json_values, each.name, each.data, each.shape[1]
        )
        length = parameters.get(BINARY_SIZE)
        if isinstance(length, int):
            if bytes(each.data):
                raise invalid(f"the input {shown(each.name)} has data both in JSON and in binary.")
            if place + length > len(body):
                raise invalid(f"the binary data of {shown(each.name)} ends beyond the body.")
            own = functools.partial(binary_values, shown(each.name), body[place : place + length])
            place += length
        inputs.append(DraftTensor(each.name, each.datatype, each.shape, own))
    if place < len(body):
        raise invalid(f"the body has {len(body) - place} bytes behind its inputs.")
    return Draft(
        id=read.id or "",
        parameters=_parameters(read.parameters),
        inputs=inputs,
        outputs=[(each.name, _parameters(each.parameters)) for each in read.outputs or ()],
    )


def _decoded(decoder: msgspec.json.Decoder[T], content: bytes | Raw, where: str) -> T:
    try:
        return decoder.decode(content)
    except RecursionError:
        raise invalid(f"{where} is nested too deeply.") from None
    except UnicodeDecodeError as error:
        raise invalid(f"{where} is not UTF-8: {error.reason} at byte {error.start}.") from None
    except msgspec.DecodeError as error:
        raise invalid(f"{where} is not a request: {error}.") from None


def _parameters(content: Raw) -> Mapping[str, object]:
    size = len(bytes(content))
    if not size or bytes(content) == b"null":
        return {}
    if size > MOST_PARAMETER_BYTES:
        raise invalid(
            f"the parameters take {size} bytes, allowed {MOST_PARAMETER_BYTES}, and "
            f"{MOST_PARAMETERS} parameters."
        )
    read = _decoded(PARAMETERS, content, "the object of parameters")
    # MLServer's types have null for unset parameters
    return {name: value for name, value in read.items() if value is not None}


def _json_values(name: str, data: Raw, width: int, count: int) -> list[bytes]:
    """Return the texts in JSON: a list of texts, or of lists with `width` texts each."""
    content = bytes(data)
    if not content:
        raise invalid(f"the input {name} has no data.")
    # quotes are counted first: decoding may take 20 times the memory of the JSON
    if content.count(b'"') > 2 * count:
        for found, _ in enumerate(STRING.finditer(content), 1):
            if found > count:
                raise invalid(f"the data of {name} has more than the {count} texts of its shape.")
    if content[1:].lstrip()[:1] == b"[":
        rows = _decoded(NESTED, data, f"the data of {name}")
        if row := next((row for row in rows if len(row) != width), None):
            raise invalid(f"the data of {name} has a row of {len(row)} texts, its shape {width}.")
        texts = list(chain.from_iterable(rows))
    else:
        texts = _decoded(FLAT, data, f"the data of {name}")
    if len(texts) != count:
        raise invalid(f"the data of {name} has {len(texts)} texts, its shape {count}.")
    return [text.encode() for text in texts]


def write_response(
    asked: Asked, model: Model, outputs: Sequence[Tensor]
) -> tuple[bytes, Mapping[str, str]]:
    """Return the body of a response, and its headers."""
    described: list[dict[str, object]] = []
    binary: list[bytes] = []
    for tensor, is_binary in asked.wanted(outputs):
        row: dict[str, object] = {
            "name": tensor.name,
            "datatype": tensor.datatype,
            "shape": tensor.shape,
        }
        if is_binary:
            row["parameters"] = {BINARY_SIZE: len(tensor.data)}
            binary.append(tensor.data)
        elif tensor.datatype == BYTES:
            values = split(tensor.data, math.prod(tensor.shape))
            row["data"] = [value.decode(errors="replace") for value in values]
        else:
            row["data"] = tensor.array().reshape(-1).tolist()
        described.append(row)
    head = {"id": asked.id} if asked.id else {}
    content = msgspec.json.encode(
        {**head, "model_name": model.name, "model_version": model.version, "outputs": described}
    )
    if not binary:
        return content, {"content-type": "application/json"}
    headers = {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(content))}
    return b"".join((content, *binary)), headers
