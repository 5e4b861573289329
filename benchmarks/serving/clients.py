"""Clients of a serving benchmark, one a protocol: each sends prepared requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence

import aiohttp

from bertender.problems.single_label_classification import SINGLE_LABEL
from serve.client.access import NO_ACCESS, AccessConfig, open_access, parse_url
from serve.client.served_model import ServedModel
from serve.loadtest import SENDERS, Outcome, Request
from serve.wire import to_arrays

__all__ = ["BenchmarkClient", "HttpClient", "Open", "TritonClient"]

TIMEOUT_S = 120.0
"""Longest wait for a response: a full batch of padded texts takes seconds on one core."""
MODEL = ServedModel(max_batch_size=64, text_columns=1, problem=SINGLE_LABEL, digest="")


class BenchmarkClient:
    """Sends prepared requests to a server, inside of an event loop."""

    def prepare(self, texts: Sequence[str]) -> Request:
        raise NotImplementedError

    async def send(self, request: Request) -> Outcome:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


class TritonClient(BenchmarkClient):
    """Over the url's protocol, with a request that was serialised before."""

    def __init__(self, url: str, access: AccessConfig = NO_ACCESS) -> None:
        address = parse_url(url)
        send = SENDERS[address.protocol]
        self.sender = send(address, open_access(address, access), TIMEOUT_S)

    def prepare(self, texts: Sequence[str]) -> Request:
        return self.sender.prepare(MODEL, to_arrays([(text,) for text in texts], text_columns=1))

    async def send(self, request: Request) -> Outcome:
        return await self.sender.send(request)

    async def close(self) -> None:
        await self.sender.close()


class HttpClient(BenchmarkClient):
    """Over HTTP/1.1, with JSON that was written before."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/classify"
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=500),
            headers={"content-type": "application/json"},
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def prepare(self, texts: Sequence[str]) -> Request:
        return Request("", json.dumps({"texts": list(texts)}).encode(), {})

    async def send(self, request: Request) -> Outcome:
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                self.session.post(self.url, data=request.body) as response,
            ):
                await response.read()
        except TimeoutError:
            return "late"
        except (OSError, aiohttp.ClientError):
            return "failed"
        return "ok" if response.status == 200 else "failed"

    async def close(self) -> None:
        await self.session.close()


Open = Callable[[], BenchmarkClient]
