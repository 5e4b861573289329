"""The backend of an endpoint in worker processes of the door, without Triton.

Each model of the repository has a process. When a model is reloaded, a new process replaces the old
one once it is ready, so that no request is refused meanwhile.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from bertender.core.errors import ServingError
from bertender.models.runtimes import check_installed
from serve.backend.metrics import METRIC_FAMILIES, Series
from serve.backend.worker import HEAD, ITSELF, content_of, frame
from serve.config import SERVED_RUNTIMES, STANDARD_OUTPUT, BackendParameters, ServeConfig
from serve.door.engine import (
    RETRY_AFTER_S,
    Code,
    Engine,
    InferRequest,
    Model,
    ModelState,
    RefusedError,
    away,
    ended,
    model_of,
)
from serve.repository import model_names
from serve.repository.config_pbtxt import (
    CONFIG_NAME,
    ModelConfig,
    read_model_config,
    served_version,
)
from serve.server.installation import QUIET_AND_LIGHT
from serve.wire import CANDIDATE_SUFFIX, Tensor

BACKEND_CODES: Mapping[str, Code] = {
    "INVALID_ARG": Code.INVALID,
    "INTERNAL": Code.FAILED,
    "CANCELLED": Code.CANCELLED,
    "LATE": Code.LATE,
    "UNAVAILABLE": Code.UNAVAILABLE,
}
"""Codes for the backend's refusals."""
STOP_S = 10.0
"""Longest wait in seconds for the next answer of a process that is to end, and for its end."""


@dataclass(eq=False)
class WorkerProcess:
    """A running worker process, and its requests."""

    model: Model
    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    waiting: dict[int, asyncio.Future[tuple[Tensor, ...]]] = field(default_factory=dict)
    counted: dict[Series, float] = field(default_factory=lambda: defaultdict(float))
    unsent: set[int] = field(default_factory=set)
    """Numbers of requests to be sent after earlier ones."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    receiving: asyncio.Task[None] | None = None
    is_retired: bool = False
    """Whether its model was unloaded, or the server stops."""

    @property
    def is_alive(self) -> bool:
        """Whether it answers: its socket ends before the process does."""
        is_read = self.receiving is not None and not self.receiving.done()
        return is_read and self.process.returncode is None

    def send(self, number: int, content: Mapping[str, Any], tensors: Sequence[Tensor] = ()) -> None:
        if not self.writer.is_closing():  # else `work` is about to refuse its requests
            self.writer.write(frame(number, content, tensors))

    async def receive(self) -> tuple[int, dict[str, Any], tuple[Tensor, ...]]:
        """Return the next message; raise IncompleteReadError after the last."""
        number, *sizes = HEAD.unpack(await self.reader.readexactly(HEAD.size))
        text, data = [await self.reader.readexactly(size) for size in sizes]
        return (number, *content_of(text, data))

    async def work(self) -> None:
        """Resolve requests with their responses until the process ends."""
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                number, content, tensors = await self.receive()
                if number == ITSELF:
                    for name, label, amount in content["counted"]:
                        self.counted[name, label] += amount
                elif (future := self.waiting.pop(number, None)) and not future.done():
                    if code := content.get("code"):
                        future.set_exception(_refusal(code, content["reason"]))
                    else:
                        future.set_result(tensors)
        for number, future in self.waiting.items():
            if not future.done():
                future.set_exception(away() if number in self.unsent else ended())
        self.waiting.clear()


class EmbeddedEngine(Engine):
    """The engine whose models run in worker processes of the door.

    Args:
        repository: repository of `write_repository`.
        config: settings of the server.
        log_file: file for the output of the processes; None for the door's own output.
    """

    def __init__(self, repository: Path, config: ServeConfig, log_file: Path | None = None) -> None:
        self.folder = repository
        self.config = config
        self.log_file = None if log_file == STANDARD_OUTPUT else log_file
        self.processes: dict[str, WorkerProcess] = {}
        self.unloaded: set[str] = set()
        """Names of models that are not started again with the others."""
        self.opening: dict[str, str] = {}
        """Name of a model -> its version that loads."""
        self._ended: asyncio.Queue[str] = asyncio.Queue()
        self._watching: set[asyncio.Task[None]] = set()
        self._retiring: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._ended = asyncio.Queue()
        if runtime := SERVED_RUNTIMES[self.config.runtime].in_process:
            check_installed(runtime)
        names = model_names(self.folder)
        if not names:
            raise ServingError(f"{self.folder} has no models. Write it again.")
        try:
            for name in sorted({*names} - self.unloaded):
                if name not in self.processes or not self.processes[name].is_alive:
                    await self._replace(name)
        except BaseException:
            await self.kill()
            raise

    async def stop(self) -> None:
        own = map(self._retire, self.processes.values())
        await asyncio.gather(*own, *self._retiring)
        self.processes.clear()

    async def kill(self) -> None:
        for each in self.processes.values():
            with suppress(ProcessLookupError):
                each.process.kill()
        for each in self.processes.values():
            await each.process.wait()
        self.processes.clear()

    async def died(self) -> str:
        return await self._ended.get()

    async def models(self) -> Mapping[str, Model]:
        return {name: each.model for name, each in self.processes.items()}

    def is_ready(self) -> bool:
        return bool(self.processes) and all(each.is_alive for each in self.processes.values())

    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        worker = self.processes.get(request.model)
        if worker is None or not worker.is_alive:
            raise away()
        wishes: dict[str, Any] = {
            "truncate": request.truncate,
            "caller": request.caller,
            "counted": request.counted,
        }
        if request.timeout_ms is not None:
            wishes["wait_ms"] = request.timeout_ms
        future: asyncio.Future[tuple[Tensor, ...]] = asyncio.get_running_loop().create_future()
        # a caller that is cancelled before it awaits the future leaves an error that nobody reads
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        worker.waiting[request.number] = future
        worker.unsent.add(request.number)
        async with worker.turn:
            # the worker reads more slowly than clients send; abandoned requests are never sent
            with suppress(ConnectionError):  # it has ended, and the future has the error
                await worker.writer.drain()
            worker.unsent.discard(request.number)
            if not future.done():
                worker.send(request.number, wishes, request.inputs)
        return await future

    def abandon(self, request: InferRequest) -> None:
        worker = self.processes.get(request.model)
        if worker is None or request.number not in worker.waiting:
            return
        if request.number not in worker.unsent:
            worker.send(request.number, {"abandon": request.number})
        elif not (future := worker.waiting.pop(request.number)).done():
            future.set_exception(RefusedError(Code.CANCELLED, "the client has gone"))

    async def repository(self) -> Sequence[ModelState]:
        ready = [(name, each.model.version, "READY") for name, each in self.processes.items()]
        loading = [(*each, "LOADING") for each in self.opening.items()]
        return [ModelState(*each, reason="") for each in (*ready, *loading)]

    async def load(self, model: str) -> None:
        known = {each.parent.name for each in self.folder.glob(f"*/{CONFIG_NAME}")}
        if model not in known:  # a path to another folder
            raise RefusedError(Code.UNKNOWN, f"the repository has no model {model!r}.")
        try:
            await self._replace(model)
        except ServingError as error:
            raise RefusedError(Code.INVALID, str(error)) from None

    async def unload(self, model: str) -> None:
        self.unloaded.add(model)
        if (worker := self.processes.pop(model, None)) is not None:
            await self._retire_shielded(worker)

    async def _replace(self, name: str) -> None:
        """Start the process of a model, and then let a former one end. Raises as `_open`."""
        fresh = await self._open(name)
        former, self.processes[name] = self.processes.get(name), fresh
        self.unloaded.discard(name)
        if former is not None:
            await self._retire_shielded(former)

    async def _retire_shielded(self, worker: WorkerProcess) -> None:
        """Retire a process, also if the caller is cancelled meanwhile."""
        task = asyncio.create_task(self._retire(worker))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        await asyncio.shield(task)

    async def _open(self, name: str) -> WorkerProcess:
        """Start the process of a model, and return once it is ready.

        Raises:
            ServingError: the model does not load, or not in time.
        """
        config = read_model_config(self.folder / name / CONFIG_NAME)
        version = str(served_version(config))
        self.opening[name] = version
        try:
            return await self._start_worker(name, version, config)
        finally:
            self.opening.pop(name, None)

    async def _start_worker(self, name: str, version: str, config: ModelConfig) -> WorkerProcess:
        model = model_of(config, version)
        parameters = BackendParameters.from_model_config(model.config)
        ours, theirs = socket.socketpair()
        # nothing may be awaited between the start of the process and the `try` that ends it
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            process = await self._start_process(theirs)
        except BaseException:
            writer.close()
            raise
        worker = WorkerProcess(model, process, reader, writer)
        # copies share a process and its model: each adds a bucket to run at once
        lanes = parameters.concurrent_buckets * config.instance_group[0].count
        texts = parameters.max_queue_texts * config.instance_group[0].count
        parameters = parameters.model_copy(
            update={"concurrent_buckets": lanes, "max_queue_texts": texts}
        )
        opening = {
            "folder": str((self.folder / name / version / parameters.artifact).resolve()),
            "parameters": parameters.as_strings(),
            "max_batch_size": config.max_batch_size,
        }
        worker.send(ITSELF, opening)
        try:
            await self._until_ready(worker)
        except BaseException:
            writer.close()
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        worker.receiving = asyncio.create_task(worker.work())
        watch = asyncio.create_task(self._watch(name, worker))
        self._watching.add(watch)
        watch.add_done_callback(self._watching.discard)
        return worker

    async def _start_process(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        """Start a process that is asked over a socket."""
        with theirs, self._output() as output:
            return await asyncio.create_subprocess_exec(
                sys.executable,
                # without the current folder, whose modules could shadow ours
                *("-P", "-m", "serve.backend.worker", str(theirs.fileno())),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env={
                    **os.environ,
                    **QUIET_AND_LIGHT,
                    "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
                },
                start_new_session=True,  # only the door handles Ctrl-C, and lets workers finish
            )

    async def _until_ready(self, worker: WorkerProcess) -> None:
        """Wait until a process has opened its model.

        Raises:
            ServingError: the model cannot be opened, or not in time.
        """
        name, limit_s = worker.model.name, self.config.ready_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                _, content, _ = await worker.receive()
        except TimeoutError:
            raise ServingError(
                f"model {name!r} was not ready within {limit_s:g} s. Give it longer with "
                "--ready-timeout-s."
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            status = await worker.process.wait()
            raise ServingError(
                f"the process of model {name!r} ended while it loaded, status {status}: see the "
                "log."
            ) from None
        if "error" in content:
            raise ServingError(f"model {name!r} does not load: {content['error']}")

    def _output(self) -> AbstractContextManager[IO[bytes] | None]:
        return nullcontext() if self.log_file is None else self.log_file.open("ab", buffering=0)

    async def _watch(self, name: str, worker: WorkerProcess) -> None:
        status = await worker.process.wait()
        if worker.is_retired:
            return
        if name.endswith(CANDIDATE_SUFFIX):  # a candidate may die
            self.processes.pop(name, None)
        else:
            self._ended.put_nowait(f"the process of model {name!r} ended, status {status}")

    async def _retire(self, worker: WorkerProcess) -> None:
        """Let a process answer its requests, as long as it answers any, then end."""
        worker.is_retired = True
        while waiting := [each for each in worker.waiting.values() if not each.done()]:
            first = asyncio.FIRST_COMPLETED
            answered, _ = await asyncio.wait(waiting, timeout=STOP_S, return_when=first)
            if not answered:
                break
        worker.writer.close()
        try:
            async with asyncio.timeout(STOP_S):
                await worker.process.wait()
        except TimeoutError:
            worker.process.kill()
            await worker.process.wait()
        if worker.receiving is not None:
            await worker.receiving

    async def metrics(self) -> str:
        lines: list[str] = []
        for family in METRIC_FAMILIES:
            lines += [
                f"# HELP {family.name} {family.description}",
                f"# TYPE {family.name} {family.kind.lower()}",
            ]
            for name, worker in self.processes.items():
                for value in family.values:
                    labels = {"model": name, "version": worker.model.version}
                    labels |= family.labels(value)
                    shown = ",".join(f'{key}="{each}"' for key, each in labels.items())
                    amount = worker.counted.get((family.name, value), 0.0)
                    lines.append(f"{family.name}{{{shown}}} {amount!r}")
        return "\n".join((*lines, ""))


def _refusal(code: str, reason: str) -> RefusedError:
    retry_after_s = RETRY_AFTER_S if code == "UNAVAILABLE" else None
    return RefusedError(BACKEND_CODES[code], reason, retry_after_s)
