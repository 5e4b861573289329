"""Watch: probes the engine every few seconds, and restarts it if it has ended or hangs.

A hanging server looks alive: its ports are open, and it may report that it is ready. So the watch
sends golden texts through the engine, like any caller. Time for which the door itself is stopped,
for example by SIGSTOP, does not count. Where the door's own event loop hangs, `Heartbeat` ends the
process, so that a service manager starts it again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import threading
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from prometheus_client import CollectorRegistry, Counter, generate_latest

from bertender.core.errors import BertenderError, ServingError
from serve.door.engine import Code, Engine, InferRequest, Model, ModelState, RefusedError, away
from serve.wire import CANDIDATE_SUFFIX, WATCH_CALLER, Tensor

logger = logging.getLogger(__name__)

TEXT = "watch"
"""Text to probe a model without a golden text."""
TICK_S = 0.25
LONGEST_TICK_S = 1.0
"""Longest tick; during a longer one, the door itself was stopped."""
STUB_GONE = "Stub process "
"""Start of Triton's error for every request after the backend's process was stopped: Triton must be
restarted."""
LAST_WORDS_S = 5.0
"""Longest wait to log a hang, which the log itself may cause: a pipe that nobody reads."""


@dataclass(frozen=True)
class Patience:
    """Times and counts of the watch."""

    every_s: float = 3.0
    """Seconds between probes."""
    unready_s: float = 3.0
    """Seconds without a due answer until readiness is false."""
    hung_s: float = 15.0
    """Seconds without a due answer until the engine is restarted."""
    restarts: int = 10
    within_s: float = 600.0
    """Period in which restarts are limited."""
    first_delay_s: float = 0.5
    longest_delay_s: float = 8.0


class WatchedEngine(Engine):
    """An engine that is restarted if it ends or hangs.

    Args:
        engine: engine to watch.
        golden: model -> an example of its inputs.
        restarts: whether to restart it; otherwise its first end is final.
        patience: times and counts.
        again: words in the log for a restart.
    """

    def __init__(
        self,
        engine: Engine,
        golden: Callable[[Model], Sequence[str] | None] = lambda model: None,
        *,
        restarts: bool = True,
        patience: Patience | None = None,
        again: str = "it starts again",
    ) -> None:
        self.engine = engine
        self.golden = golden
        self.restarts = restarts
        self.patience = patience or Patience()
        self.again = again
        self.is_up = False
        self.silent_s: dict[str, float] = defaultdict(float)
        """Seconds without a due answer from each model."""
        self.answered: dict[str, float] = {}
        """Name of a model -> time of its last prediction for any caller."""
        self.ready = False
        self._registry = CollectorRegistry()
        self._restarts = Counter(
            "bertender_door_restarts",
            "Restarts of the engine after it had ended or hung.",
            registry=self._registry,
        )
        self._numbers = itertools.count(-1, -1)
        self._begun: deque[float] = deque()
        self._task: asyncio.Task[str] | None = None

    async def start(self) -> None:
        """Start the engine, and the watch.

        Raises:
            BertenderError: any error of the engine.
        """
        await self.engine.start()
        self._set(is_up=True)
        await self.models()
        self._task = asyncio.create_task(self._keep())

    async def stop(self) -> None:
        self._set(is_up=False)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        await self.engine.stop()

    async def died(self) -> str:
        """Wait until the engine is given up, and return the reason."""
        assert self._task is not None
        return await asyncio.shield(self._task)

    def is_ready(self) -> bool:
        return self.ready and self.engine.is_ready()

    def hurry(self) -> None:
        self.engine.hurry()

    def _set(self, *, is_up: bool, is_well: bool = True) -> None:
        self.is_up, self.ready = is_up, is_up and is_well

    async def _keep(self) -> str:
        """Keep the engine running until it is given up; return the reason."""
        while True:
            reason = await self._until_away()
            self._set(is_up=False)
            if not self.restarts:
                return reason
            while True:
                if (delay_s := self._delay()) is None:
                    times, minutes = self.patience.restarts, self.patience.within_s / 60
                    return (
                        f"{reason.rstrip('.')}. It was restarted {times} times within {minutes:g} "
                        "minutes, the most allowed."
                    )
                logger.warning("the model server ended, %s; %s", reason, self.again)
                await asyncio.sleep(delay_s)
                self._restarts.inc()
                try:
                    await self.engine.start()
                    break
                except (BertenderError, OSError) as error:  # also if the machine is out of memory
                    reason = str(error)
                    await self.engine.kill()
            self.silent_s.clear()
            self._set(is_up=True)

    def _delay(self) -> float | None:
        """Return the wait before the next start; None after too many."""
        now = asyncio.get_running_loop().time()
        while self._begun and now - self._begun[0] > self.patience.within_s:
            self._begun.popleft()
        if len(self._begun) >= self.patience.restarts:
            return None
        delay_s: float = self.patience.first_delay_s * 2 ** len(self._begun)
        self._begun.append(now)
        return min(delay_s, self.patience.longest_delay_s)

    async def _until_away(self) -> str:
        """Wait until the engine ends, or was killed for hanging; return the reason."""
        died = asyncio.create_task(self.engine.died())
        watching = asyncio.create_task(self._watch())
        try:
            await asyncio.wait({died, watching}, return_when=asyncio.FIRST_COMPLETED)
            if not watching.done():
                return died.result()
            reason = f"{watching.result()!r} gave no answer for {self.patience.hung_s:g} s"
            self._set(is_up=False)
            await self.engine.kill()
            await died
            return reason
        finally:
            for task in (died, watching):
                task.cancel()
            await asyncio.wait({died, watching})

    async def _watch(self) -> str:
        """Wait until a model hangs, and return its name."""
        while True:
            well = True
            for model in [*(await self.engine.models()).values()]:
                # a candidate may hang
                if model.name.endswith(CANDIDATE_SUFFIX) or self._has_answered(model):
                    continue
                if not await self._answers(model) and model.name in await self.engine.models():
                    well = False  # else it was unloaded meanwhile
                if self.silent_s[model.name] >= self.patience.hung_s:
                    return model.name
            self._set(is_up=True, is_well=well)
            await asyncio.sleep(self.patience.every_s)

    def _has_answered(self, model: Model) -> bool:
        """Return whether a model has recently answered other requests, so that it needs no
        probe."""
        since = asyncio.get_running_loop().time() - self.patience.every_s
        return self.answered.get(model.name, since) > since

    async def _answers(self, model: Model) -> bool:
        """Return whether a model answers; a failure is not an answer."""
        request = await self._request(model)
        question = asyncio.create_task(self.engine.infer(request))
        clock = asyncio.get_running_loop().time
        try:
            while not question.done():
                before = clock()
                await asyncio.wait({question}, timeout=TICK_S)
                if question.done():
                    break
                self.silent_s[model.name] += min(clock() - before, LONGEST_TICK_S)
                if self.silent_s[model.name] >= self.patience.hung_s:
                    return False
                if self.silent_s[model.name] >= self.patience.unready_s:
                    self._set(is_up=True, is_well=False)
            if is_well := _is_well(question):
                self.silent_s[model.name] = 0.0
                return is_well
            if not _is_away(question):
                self.silent_s[model.name] += self.patience.every_s
            self._set(is_up=True, is_well=False)
            return is_well
        finally:
            if not question.done():
                question.cancel()
                self.engine.abandon(request)

    async def _request(self, model: Model) -> InferRequest:
        golden = await asyncio.to_thread(self.golden, model)  # the storage may stand still
        texts = golden or [TEXT] * len(model.inputs)
        # of several passages, the first is enough
        texts = texts[: len(model.inputs)]
        return InferRequest(
            number=next(self._numbers),
            model=model.name,
            inputs=tuple(
                Tensor.of_array(name, np.array([[text.encode()]], np.object_))
                for name, text in zip(model.inputs, texts, strict=True)
            ),
            caller=WATCH_CALLER,
            truncate=True,
        )

    async def models(self) -> Mapping[str, Model]:
        """Return the models, also while the engine restarts."""
        if self.is_up:
            self._models = await self.engine.models()
        return self._models

    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        self._check_up()
        try:
            outputs = await self.engine.infer(request)
        except RefusedError as error:
            if error.code is Code.FAILED and error.reason.startswith(STUB_GONE):
                raise away() from None
            raise
        self.silent_s[request.model] = 0.0
        self.answered[request.model] = asyncio.get_running_loop().time()
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
            raise away()

    async def metrics(self) -> str:
        return generate_latest(self._registry).decode() + await self.engine.metrics()


def _is_well(question: asyncio.Task[tuple[Tensor, ...]]) -> bool:
    """Return whether the answer is a prediction, or a refusal of the text. Other refusals are
    failures: a full queue has room for the watch, whose probe waits as long as it must."""
    error = question.exception()
    if isinstance(error, RefusedError):
        return error.code is Code.INVALID
    if error is not None:
        logger.error("the watch's probe failed", exc_info=error)
    return error is None


def _is_away(question: asyncio.Task[tuple[Tensor, ...]]) -> bool:
    """Return whether the model is not there, which a restart for a hang would not change: the
    engine's end is noticed, and another program may have unloaded it."""
    error = question.exception()
    return isinstance(error, RefusedError) and error.code in (Code.UNAVAILABLE, Code.ENDED)


class Heartbeat:
    """Ends the process if its event loop hangs inside an `async with` block.

    A thread counts its own rounds without a beat of the loop: while the process is stopped, or
    foreign code keeps the interpreter's lock, it counts none.

    Args:
        hung_s: seconds without a beat.
        every_s: seconds between beats, and between rounds.
    """

    def __init__(self, hung_s: float = 30.0, every_s: float = 1.0) -> None:
        self.hung_s = hung_s
        self.every_s = every_s
        self.beats = 0
        self.ended = threading.Event()

    async def __aenter__(self) -> None:
        self.task = asyncio.create_task(self._beat())
        self.loop_thread = threading.get_ident()
        threading.Thread(target=self._watch, name="heartbeat", daemon=True).start()

    async def __aexit__(self, *error: object) -> None:
        self.ended.set()
        self.task.cancel()

    async def _beat(self) -> None:
        while True:
            self.beats += 1
            await asyncio.sleep(self.every_s)

    def _watch(self) -> None:
        seen, silent_s = 0, 0.0
        while not self.ended.wait(self.every_s):
            silent_s = silent_s + self.every_s if self.beats == seen else 0.0
            seen = self.beats
            if silent_s >= self.hung_s:
                self._end()

    def _end(self) -> None:
        last = threading.Timer(LAST_WORDS_S, os._exit, (ServingError.exit_code,))
        last.daemon = True
        last.start()
        frame = sys._current_frames()[self.loop_thread]
        logger.critical(
            "the server's event loop hangs here:\n%s\nso the server ends",
            "".join(traceback.format_stack(frame)).rstrip(),
        )
        os._exit(ServingError.exit_code)
