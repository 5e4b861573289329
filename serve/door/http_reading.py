"""Bodies of HTTP: those of requests bounded, inflated, and given up with their client."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Receive

from serve.door.engine import CANCELLED, TOO_LARGE, RefusedError
from serve.door.requests import invalid, shown

T = TypeVar("T")
WINDOW_BITS = {"gzip": 31, "deflate": 15}
"""Content-Encoding -> what zlib calls it. The name deflate stands for zlib's own format."""


class ClientGoneError(RefusedError):
    """The client has closed the connection: nobody reads a response."""

    def __init__(self) -> None:
        super().__init__(CANCELLED, "the client has gone")


@asynccontextmanager
async def body_of(
    headers: Headers, receive: Receive, most_bytes: int, hold: Callable[[int, int], None]
) -> AsyncIterator[bytes]:
    """Read a body, inflated, and count it among those in memory while the block runs.

    Args:
        headers: of the request.
        receive: of ASGI.
        most_bytes: of the body, before and after it is inflated.
        hold: counts bytes of bodies in memory, those that go below 0, of a body that has so many so
            far; refuses too many.

    Raises:
        RefusedError: it is too large, or it cannot be inflated.
        ClientGoneError: the connection ended first.
    """
    length = headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > most_bytes:
        raise _too_large(f"{length[:20]} bytes", most_bytes)
    inflate = _inflater(headers.get("content-encoding", "identity"))
    parts: list[bytes] = []
    held = size = 0
    try:
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            more = message.get("more_body", False)
            part: bytes = message.get("body", b"")
            if inflate is not None:
                part = _inflated(inflate, part, most_bytes - size + 1)
            size += len(part)
            if size > most_bytes:
                raise _too_large("more bytes", most_bytes)
            hold(len(part), size)
            held += len(part)
            parts.append(part)
        if inflate is not None and (not inflate.eof or inflate.unused_data):
            raise invalid("the body does not end where its Content-Encoding says.")
        body = b"".join(parts)
        parts.clear()
        yield body
    finally:
        hold(-held, 0)


def _too_large(size: str, most_bytes: int) -> RefusedError:
    return RefusedError(
        TOO_LARGE,
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
    """Return what comes out of a part of the body; with `most_bytes`, there may be more."""
    try:
        return inflater.decompress(part, most_bytes)
    except zlib.error as error:
        raise invalid(f"the body is not what its Content-Encoding says: {error}.") from None


async def unless_gone(work: asyncio.Future[T], receive: Receive) -> T:
    """Return what work yields; it is cancelled when the client has gone.

    Raises:
        ClientGoneError: the client has gone.
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
    """Return a response of JSON."""
    body = msgspec.json.encode(content)
    return Response(body, status, headers=headers, media_type="application/json")
