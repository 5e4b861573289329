"""AsyncEndpoint: texts in, predictions out, several requests at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self, Unpack

from bertender.text.example import Example
from serve.client.address import DEFAULT_URL
from serve.client.connection import Connection, ConnectionSettings
from serve.client.retries import Tries, on_opening
from serve.client.served_model import Classification, Columns, ResponseTensors, ServedModel

__all__ = ["DEFAULT_CONCURRENCY", "AsyncEndpoint"]

DEFAULT_CONCURRENCY = 4


class AsyncEndpoint(Connection):
    """Connections to a served classifier, for `async with`. It belongs to one event loop.

    Args:
        url, model: as in `Endpoint`.
        batch_size: texts a request; by default, and at most, what the model takes.
        concurrency: most requests at a time, of all callers together.
        timeout_s: longest wait for the response to one request, its retries included; it begins
            when the request is sent, not while it waits for others.
        retries: as in `Endpoint`.
        access: as in `Endpoint`.

    Raises (on entering): as `Endpoint`.
    """

    def __init__(
        self,
        url: str = DEFAULT_URL,
        *,
        batch_size: int | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        **settings: Unpack[ConnectionSettings],
    ) -> None:
        super().__init__(url, **settings)
        self.concurrency = concurrency
        self.turns = asyncio.Semaphore(concurrency)
        self.asked_batch_size = batch_size

    async def __aenter__(self) -> Self:
        self.client = self.protocol.connect_async(self.address.host_and_port, self.access)
        try:
            self.model = await self._served_model(on_opening(self.retries))
        except BaseException:
            await self.close()
            raise
        most = self.model.max_batch_size
        self.batch_size = min(self.asked_batch_size or most, most)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the connections."""
        if self.client is not None:
            await self.client.close()
        self.client = None

    async def is_same_model(self) -> bool:
        """Return whether the model is still the one that it was on opening."""
        return (await self._served_model(self.retries)).digest == self.model.digest

    async def _served_model(self, retries: int | None) -> ServedModel:
        response = await self._call(self.ask_for_config, retries)
        return ServedModel.from_model_config(self.protocol.config_of(response))

    async def classify(self, examples: Sequence[Example]) -> list[Classification]:
        """Return a prediction for each example, in their order; errors as in `Endpoint`.

        The first request that fails cancels the others.
        """
        known = self.model.examples(examples)
        requests = self.model.requests(known, self.batch_size)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(columns)) for columns in requests]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return self.model.classifications([task.result() for task in tasks], known)

    async def _ask(self, columns: Columns) -> ResponseTensors:
        inputs = self.model.tensors(columns, self.protocol.tensor)
        async with self.turns:
            result = await self._call(
                lambda client, timeout_s: self.protocol.infer(
                    client, self.model_name, inputs, timeout_s, self.access.headers
                ),
                self.retries,
            )
        return self.model.response(result)

    async def _call(self, ask: Callable[[Any, float], Awaitable[Any]], retries: int | None) -> Any:
        """Return what one request gets, after as many tries as it needs and may have."""
        tries = Tries(self.timeout_s, retries)
        while True:
            remaining_s = tries.remaining_s
            try:
                async with self.protocol.limit_async(remaining_s):
                    return await ask(self.client, remaining_s)
            except Exception as error:
                wait_s = self.wait_after(error, tries)
            await asyncio.sleep(wait_s)
