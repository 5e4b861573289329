"""An event loop whose clock only moves while it waits: load tests of minutes take no time."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

from serve.loadtest import Outcome


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`asyncio.sleep` advances the clock at once; `block` is work that holds the loop up."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(_VirtualSelector(self))

    def time(self) -> float:
        return self.now

    def block(self, seconds: float) -> None:
        self.now += seconds


class _VirtualSelector(selectors.SelectSelector):
    def __init__(self, loop: VirtualTimeLoop) -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "everybody waits for somebody"
        self.loop.now += timeout or 50e-6  # looking takes a moment
        return super().select(0)


class OneServer:
    """One server that takes requests in their order, `service_s` for each."""

    def __init__(self, service_s: float) -> None:
        self.service_s = service_s
        self.free_at = 0.0
        self.requests = 0

    async def send(self, number: int) -> Outcome:
        loop = asyncio.get_running_loop()
        self.requests += 1
        self.free_at = max(self.free_at, loop.time()) + self.service_s
        await asyncio.sleep(self.free_at - loop.time())
        return "ok"
