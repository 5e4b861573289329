"""Connections to a server that answers like Triton, or badly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import uvloop

from serve.door.triton_http import UNIX, TritonHttp, UnsentError
from serve.wire import Tensor

TENSORS = (
    b'{"outputs": ['
    b'{"name": "A", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}},'
    b'{"name": "B", "datatype": "BOOL", "shape": [1], "parameters": {"binary_data_size": 1}}]}'
)


def answer(body: bytes, *headers: str, status: int = 200) -> bytes:
    lines = [f"HTTP/1.1 {status} -", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


class Served:
    """Requests and connections of a server that sends a line of its script for each request: the
    answer's bytes, or None to answer nothing; an empty one ends the connection."""

    def __init__(self, script: Sequence[bytes | None]) -> None:
        self.script = [*script]
        self.connections = 0
        self.requests: list[bytes] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                size = int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0])
                self.requests.append(head + await reader.readexactly(size))
                content = self.script.pop(0)
                if content is None:
                    continue
                for byte in content:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(0)
                if not content or b"Connection: close" in content:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def with_server(
    folder: Path,
    script: Sequence[bytes | None],
    use: Callable[[TritonHttp, Served], Awaitable[None]],
) -> None:
    async def run() -> None:
        served, path = Served(script), folder / "socket"
        async with await asyncio.start_unix_server(served, path):
            http = TritonHttp(f"{UNIX}{path}", token="secret")
            await use(http, served)
            http.close()
            await asyncio.sleep(0)

    uvloop.run(run())


def test_a_connection_is_kept_and_sends_what_was_asked(tmp_path: Path) -> None:
    data = np.array([1.5, -2.0], np.float32).tobytes() + b"\1"
    outputs = answer(TENSORS + data, f"Inference-Header-Content-Length: {len(TENSORS)}")
    script = [outputs, answer(b'{"error": "no"}', status=400), answer(b"<html>", status=502)]

    async def use(http: TritonHttp, served: Served) -> None:
        found = await http.ask("POST", "/v2/a", {"x": 1}, [b"ab", b"c"])
        assert found.tensors() == (
            Tensor("A", "FP32", (2,), data[:8]),
            Tensor("B", "BOOL", (1,), data[8:]),
        )
        refused = await http.ask("GET", "/v2/b")
        assert (refused.status, refused.error()) == (400, "no")
        assert (await http.ask("GET", "/v2/c")).error() == "status 502: <html>"
        assert served.connections == 1
        first, *others = served.requests
        assert first.startswith(b"POST /v2/a HTTP/1.1\r\n") and first.endswith(b'{"x":1}abc')
        assert b"\r\ninference-header-content-length: 7\r\n" in first
        assert all(b"\r\nbertender-admin-token: secret\r\n" in each for each in served.requests)
        assert not any(b"inference-header" in each for each in others)

    with_server(tmp_path, script, use)


@pytest.mark.parametrize("headers", [["Connection: close"], []], ids=["said", "unsaid"])
def test_a_connection_that_triton_ends_is_not_used_again(
    headers: list[str], tmp_path: Path
) -> None:
    async def use(http: TritonHttp, served: Served) -> None:
        assert (await http.ask("GET", "/1")).body == b"1"
        if not headers:
            http._idle[0].close()
            await asyncio.sleep(0.05)
        assert (await http.ask("GET", "/2")).body == b"2"
        assert served.connections == 2

    with_server(tmp_path, [answer(b"1", *headers), answer(b"2")], use)


@pytest.mark.parametrize(
    "content", [b"", b"no HTTP\r\n\r\n", answer(b"1", "Inference-Header-Content-Length: x")]
)
def test_without_an_answer_the_connection_is_lost(content: bytes, tmp_path: Path) -> None:
    async def use(http: TritonHttp, served: Served) -> None:
        with pytest.raises(ConnectionResetError):
            await http.ask("GET", "/1")
        assert (await http.ask("GET", "/2")).body == b"2"

    with_server(tmp_path, [content, answer(b"2")], use)


def test_a_late_answer_is_nobodys(tmp_path: Path) -> None:
    async def use(http: TritonHttp, served: Served) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await http.ask("GET", "/1")
        assert (await http.ask("GET", "/2")).body == b"2"
        assert served.connections == 2

    with_server(tmp_path, [None, answer(b"2")], use)


def test_requests_at_a_time_have_connections_of_their_own(tmp_path: Path) -> None:
    async def use(http: TritonHttp, served: Served) -> None:
        asked = [asyncio.create_task(http.ask("GET", f"/{number}")) for number in range(5)]
        await asyncio.sleep(0.05)
        assert served.connections == 5
        http.close()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(each) for each in found] == [ConnectionResetError] * 5

    with_server(tmp_path, [None] * 5, use)


def test_where_nobody_listens_nothing_is_sent(tmp_path: Path) -> None:
    for address in (f"{UNIX}{tmp_path / 'none'}", "127.0.0.1:1"):
        with pytest.raises(UnsentError):
            uvloop.run(TritonHttp(address, token="").ask("GET", "/"))
