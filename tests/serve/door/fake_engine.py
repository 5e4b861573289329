"""FakeEngine: an engine that answers from a dictionary, and doors in front of it for tests."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertender.problems.single_label_classification import SINGLE_LABEL
from serve.door.engine import Code, Engine, InferRequest, Model, ModelState, RefusedError
from serve.door.grpc_front import grpc_server, listen
from serve.door.http import http_app, metrics_app
from serve.door.http_server import http_server
from serve.door.service import CountTokens, Door, DoorSettings
from serve.wire import TOKENS, Tensor

LABELS = {"good pear": "positive", "bad pear": "negative"}
HOLD, BUSY, BREAK = "HOLD", "BUSY", "BREAK"
"""Texts that wait until they are abandoned or let go, that are rejected, and that fail."""
MOST_TEXT_BYTES = 32 * 1024


def model_of(name: str = "classifier", **changes: Any) -> Model:
    fields: dict[str, Any] = {
        "name": name,
        "version": "1",
        "inputs": ("TEXT",),
        "outputs": {"LABEL": ("BYTES", (1,)), "SCORE": ("FP32", (1,)), "LOGITS": ("FP32", (2,))},
        "max_batch_size": 64,
        "max_text_bytes": MOST_TEXT_BYTES,
        "longest_input": 128,
        "config": {
            "name": name,
            "backend": "python",
            "max_batch_size": 64,
            "input": [{"name": "TEXT", "data_type": "TYPE_STRING", "dims": [1]}],
            "output": [{"name": "LABEL", "data_type": "TYPE_STRING", "dims": [1]}],
            "parameters": {
                "longest_input": {"string_value": "128"},
                "problem_type": {"string_value": SINGLE_LABEL.name},
                "digest": {"string_value": "toy"},
            },
        },
        "longest_wait_s": 0.1,
    }
    return Model(**{**fields, **changes})


@dataclass
class FakeEngine(Engine):
    """Labels texts by LABELS, others "unknown"; a score is the text's length."""

    served: Mapping[str, Model] = field(default_factory=lambda: {"classifier": model_of()})
    requests: list[InferRequest] = field(default_factory=list)
    abandoned: list[int] = field(default_factory=list)
    done: int = 0
    loaded: list[str] = field(default_factory=list)
    away: bool = False

    def __post_init__(self) -> None:
        self.let_go = asyncio.Event()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def models(self) -> Mapping[str, Model]:
        return self.served

    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        self.requests.append(request)
        texts = [text.decode() for text in request.inputs[0].array().reshape(-1)]
        if BUSY in texts:
            raise RefusedError(Code.UNAVAILABLE, "the queue is full", retry_after_s=2.5)
        if BREAK in texts:
            raise RuntimeError("a bad day")
        if HOLD in texts:
            await self.let_go.wait()
        self.done += 1
        labels = np.array([[LABELS.get(text, "unknown").encode()] for text in texts], np.object_)
        scores = np.array([[len(text)] for text in texts], np.float32)
        logits = np.array([[0.5, -len(text)] for text in texts], np.float32)
        arrays = {"LABEL": labels, "SCORE": scores, "LOGITS": logits}
        if request.counted:
            arrays[TOKENS] = np.array([[len(text.split())] for text in texts], np.int32)
        return tuple(Tensor.of_array(name, array) for name, array in arrays.items())

    def abandon(self, request: InferRequest) -> None:
        self.abandoned.append(request.number)

    async def died(self) -> str:
        await asyncio.Event().wait()
        return ""

    async def kill(self) -> None:
        pass

    def is_ready(self) -> bool:
        return not self.away

    async def repository(self) -> Sequence[ModelState]:
        return [ModelState(name, "1", "READY", "") for name in self.served]

    async def load(self, model: str) -> None:
        if model not in self.served:
            raise RefusedError(Code.INVALID, f"failed to load {model!r}")
        self.loaded.append(model)

    async def unload(self, model: str) -> None:
        self.loaded.remove(model)

    async def metrics(self) -> str:
        return "of_the_engine 1\n"


@dataclass
class RunningDoor:
    """A door that listens."""

    door: Door
    engine: FakeEngine
    http_port: int
    grpc_port: int
    metrics_port: int
    loop: asyncio.AbstractEventLoop
    connections: Collection[object]
    """Of HTTP, open now."""

    def call(self, function: Callable[[], object]) -> None:
        """Run a function in the door's loop."""
        done = threading.Event()
        self.loop.call_soon_threadsafe(lambda: (function(), done.set()))
        assert done.wait(10)


@contextmanager
def running_door(
    engine: FakeEngine | None = None,
    count_tokens: CountTokens | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    **settings: Any,
) -> Iterator[RunningDoor]:
    """Run a door in a thread of its own, over free ports of loopback."""
    started, doors, failures = threading.Event(), list[RunningDoor](), list[BaseException]()
    stopped: list[asyncio.Event] = []

    async def run() -> None:
        own = engine or FakeEngine()
        door = Door(own, DoorSettings(**settings), count_tokens)
        plain = DoorSettings()
        servers = [
            http_server(
                http_app(door),
                door.settings,
                host="127.0.0.1",
                port=0,
                on_refusal=functools.partial(door.records.refuse, "http"),
            ),
            http_server(metrics_app(door), plain, host="127.0.0.1", port=0),
        ]
        tasks = [asyncio.ensure_future(server.serve()) for server in servers]
        while not all(server.started for server in servers):
            await asyncio.sleep(0.01)
        ports = [server.servers[0].sockets[0].getsockname()[1] for server in servers]
        calls = grpc_server(door, own.served.values())
        grpc_port = listen(calls, door.settings, "127.0.0.1", 0)
        await calls.start()
        loop = asyncio.get_running_loop()
        doors.append(
            RunningDoor(
                door, own, ports[0], grpc_port, ports[1], loop, servers[0].server_state.connections
            )
        )
        stopped.append(asyncio.Event())
        started.set()
        await stopped[0].wait()
        own.let_go.set()
        await calls.stop(None)
        for server in servers:
            server.should_exit = server.force_exit = True
        await asyncio.gather(*tasks)
        door.records.close()

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(run())
        except BaseException as error:
            failures.append(error)
            started.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert started.wait(20)
    if failures:
        raise failures[0]
    try:
        yield doors[0]
    finally:
        doors[0].call(stopped[0].set)
        thread.join()
    if failures:
        raise failures[0]
