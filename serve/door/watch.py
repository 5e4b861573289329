"""Watch: asks the engine for a prediction every few seconds, and starts it again where it has ended
or hangs.

A server that hangs looks alive: its ports are open, and its own readiness may say so. So the watch
sends texts of its own through the engine, as one more caller. It does not count the time in which
the door itself stands still, as after SIGSTOP.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bertender.core.errors import BertenderError
from serve.door.engine import (
    FAILED,
    UNAVAILABLE,
    Engine,
    InferRequest,
    Model,
    ModelState,
    RefusedError,
)
from serve.door.tensors import Tensor

logger = logging.getLogger(__name__)

CALLER = "bertender-watch"
TEXT = "watch"
"""What is asked of a model that has no golden text."""
TICK_S = 0.25
LONGEST_TICK_S = 1.0
"""Of a tick that took longer, the door itself stood still."""
AWAY = "the model server has ended, and is started again. Send the request again later."


@dataclass(frozen=True)
class Patience:
    """How long the watch waits."""

    every_s: float = 3.0
    """Between two questions."""
    unready_s: float = 3.0
    """Without any answer of the engine, while one is due: readiness is false."""
    hung_s: float = 15.0
    """Likewise: the engine is started again."""
    restarts: int = 10
    within_s: float = 600.0
    """So many restarts in so much time, at most."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 8.0


class WatchedEngine(Engine):
    """An engine that is started again when it ends or hangs.

    Args:
        engine: what is watched.
        golden: name of a model -> an example that it takes.
        restarts: whether it is started again; if not, its first end is the end.
        patience: how long it waits.
    """

    def __init__(
        self,
        engine: Engine,
        golden: Callable[[str], Sequence[str] | None] = lambda model: None,
        *,
        restarts: bool = True,
        patience: Patience | None = None,
    ) -> None:
        self.engine = engine
        self.golden = golden
        self.restarts = restarts
        self.patience = patience or Patience()
        self.is_up = False
        self.silent_s = 0.0
        """Seconds for which an answer was due and none came."""
        self.ready = False
        self._numbers = itertools.count(-1, -1)
        self._begun: deque[float] = deque()
        self._task: asyncio.Task[str] | None = None

    async def start(self) -> None:
        """Start the engine, and the watch.

        Raises:
            BertenderError: as the engine.
        """
        await self.engine.start()
        self._set(is_up=True)
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        self._set(is_up=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.engine.stop()

    async def died(self) -> str:
        """Return why the engine is not started again."""
        assert self._task is not None
        return await asyncio.shield(self._task)

    def is_ready(self) -> bool:
        return self.ready

    def hurry(self) -> None:
        self.engine.hurry()

    def _set(self, *, is_up: bool, is_well: bool = True) -> None:
        self.is_up, self.ready = is_up, is_up and is_well

    async def _keep(self) -> str:
        """Keep the engine running; return why that is given up."""
        while True:
            reason = await self._until_away()
            self._set(is_up=False)
            if not self.restarts:
                return reason
            while True:
                if (delay_s := self._delay()) is None:
                    times, minutes = self.patience.restarts, self.patience.within_s / 60
                    return (
                        f"{reason.rstrip('.')}. It was started again {times} times within "
                        f"{minutes:g} minutes, and is not once more."
                    )
                logger.warning("the model server ended, %s; it starts again", reason)
                await asyncio.sleep(delay_s)
                try:
                    await self.engine.start()
                    break
                except BertenderError as error:
                    reason = str(error)
                    await self.engine.kill()
            self._set(is_up=True)

    def _delay(self) -> float | None:
        """Return how long to wait before the next start; None where there were too many."""
        now = asyncio.get_running_loop().time()
        while self._begun and now - self._begun[0] > self.patience.within_s:
            self._begun.popleft()
        if len(self._begun) >= self.patience.restarts:
            return None
        delay_s: float = self.patience.first_delay_s * 2 ** len(self._begun)
        self._begun.append(now)
        return min(delay_s, self.patience.longest_delay_s)

    async def _until_away(self) -> str:
        """Return why the engine has ended, or was ended because it hung."""
        died = asyncio.create_task(self.engine.died())
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({died, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                self._set(is_up=True, is_well=False)
                logger.warning("no answer for %g s: the model server is ended", self.silent_s)
                watching.result()  # an error of the watch itself is not hidden
                await self.engine.kill()
            reason = await died
            return f"no answer for {self.silent_s:g} s" if watching.done() else reason
        finally:
            for task in (died, watching):
                task.cancel()
            await asyncio.wait({died, watching})

    async def _watch(self) -> None:
        """Return once the engine hangs."""
        while True:
            for model in [*(await self.engine.models()).values()]:
                if not await self._answers(model):
                    return
            await asyncio.sleep(self.patience.every_s)

    async def _answers(self, model: Model) -> bool:
        """Return whether a model answers, or gives others answers meanwhile."""
        request = self._request(model)
        question = asyncio.create_task(self.engine.infer(request))
        clock = asyncio.get_running_loop().time
        self.silent_s = 0.0
        try:
            while not question.done():
                before = clock()
                await asyncio.wait({question}, timeout=TICK_S)
                self.silent_s += min(clock() - before, LONGEST_TICK_S)
                if question.done():
                    break
                if self.silent_s >= self.patience.hung_s:
                    return False
                self._set(is_up=True, is_well=self.silent_s < self.patience.unready_s)
            self._set(is_up=True, is_well=_is_well(question))
            return True
        finally:
            if not question.done():
                question.cancel()
                self.engine.abandon(request)

    def _request(self, model: Model) -> InferRequest:
        texts = self.golden(model.name) or [TEXT] * len(model.inputs)
        return InferRequest(
            number=next(self._numbers),
            model=model.name,
            inputs=tuple(
                Tensor.of_array(name, np.array([[text.encode()]], np.object_))
                for name, text in zip(model.inputs, texts, strict=True)
            ),
            caller=CALLER,
            truncate=True,
        )

    async def models(self) -> Mapping[str, Model]:
        return await self.engine.models()

    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        self._check_up()
        try:
            outputs = await self.engine.infer(request)
        except RefusedError:
            self.silent_s = 0.0
            raise
        self.silent_s = 0.0
        return outputs

    def abandon(self, request: InferRequest) -> None:
        if self.is_up:
            self.engine.abandon(request)

    async def kill(self) -> None:
        await self.engine.kill()

    async def repository(self) -> Sequence[ModelState]:
        self._check_up()
        return await self.engine.repository()

    async def load(self, model: str) -> None:
        self._check_up()
        await self.engine.load(model)

    async def unload(self, model: str) -> None:
        self._check_up()
        await self.engine.unload(model)

    def _check_up(self) -> None:
        if not self.is_up:
            raise RefusedError(UNAVAILABLE, AWAY, self.patience.first_delay_s)

    async def metrics(self) -> str:
        return await self.engine.metrics()


def _is_well(question: asyncio.Task[tuple[Tensor, ...]]) -> bool:
    """Return whether an answer is a prediction, or a refusal as of a full queue."""
    error = question.exception()
    if isinstance(error, RefusedError):
        return error.code is not FAILED
    if error is not None:
        logger.error("the question of the watch failed", exc_info=error)
    return error is None
