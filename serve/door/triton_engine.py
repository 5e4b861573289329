"""Engines with Triton, which the door calls over HTTP.

`TritonEngine` starts and ends Triton. `AttachedEngine` does neither: Triton may be NVIDIA's
container in the door's pod. The door polls it every second, and is ready while its models are.

Inferences are never cancelled and have no deadline, which would cancel them: Triton 2.51 crashes
after some cancellations. Requests are given up by `abandon`.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np

from bertender.core.errors import ConfigError, ServingError
from serve.config import TRITON_SCHEME, BackendParameters, ServeConfig
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
from serve.door.requests import BINARY_SIZE
from serve.door.triton_http import Answer, TritonHttp, UnsentError
from serve.repository import model_names
from serve.repository.config_pbtxt import CONFIG_NAME, model_config_of, read_model_config
from serve.server.triton_process import LOOPBACK, Triton, checked_token
from serve.wire import ABSTAINED, ADMIN_HEADER, CANDIDATE_SUFFIX, ENCODER_NAME, Tensor

logger = logging.getLogger(__name__)

T = TypeVar("T")

LIVE, REPOSITORY = "/v2/health/live", "repository/models"
POLL_S = 0.05
CRASH_S = 2.0
"""Longest time until the end of a Triton that has crashed is noticed."""
LAUNCHES = 3
PORT_IN_USE = "already in use"
"""Triton's message for a port in use."""
METRICS_TIMEOUT_S = 5.0
CODES: Mapping[int, Code] = {
    400: Code.INVALID,
    404: Code.UNKNOWN,
    501: Code.LATE,  # as the backend reports it
    503: Code.UNAVAILABLE,
}
"""Codes for Triton's statuses; other errors are failures."""

# parameters for the backend, which clients cannot send
CALLER, WAIT_MS, NUMBER, ABANDON = "caller", "wait_ms", "number", "abandon"


class AskedTriton(Engine):
    """A client of Triton, whoever starts it.

    Args:
        names: names of the models that must be ready.
        token: token for its routes; empty if they are open.
    """

    def __init__(self, names: Sequence[str], token: str) -> None:
        self.names = names
        self.token = token
        self.http: TritonHttp | None = None
        self.ended: asyncio.Future[None] | None = None
        self._models: dict[str, Model] = {}
        self._calls: dict[int, asyncio.Task[tuple[Tensor, ...]]] = {}
        self._further: set[asyncio.Task[None]] = set()
        """Calls that go on without a caller."""

    def _open(self, address: str) -> None:
        self.http = TritonHttp(address, self.token)

    async def _are_ready(self) -> bool:
        assert self.http is not None
        paths = (LIVE, *(f"{_path(name)}/ready" for name in self.names))
        try:
            for path in paths:
                if (await self.http.ask("GET", path)).status != HTTPStatus.OK:
                    return False
        except ConnectionError:  # Triton does not listen yet
            return False
        return True

    def _close(self) -> None:
        if self.http is not None:
            self.http.close()
        self.http = None

    async def models(self) -> Mapping[str, Model]:
        return self._models

    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        call = asyncio.create_task(self._outputs(request))
        self._calls[request.number] = call
        call.add_done_callback(lambda done: self._calls.pop(request.number, None))
        return await _answer_of(call)

    async def _outputs(self, request: InferRequest) -> tuple[Tensor, ...]:
        parameters: dict[str, bool | float | str] = {
            CALLER: request.caller,
            NUMBER: request.number,
            "truncate": request.truncate,
            "counted": request.counted,
        }
        if request.timeout_ms is not None:
            parameters[WAIT_MS] = request.timeout_ms
        try:
            return (await self._infer(request.model, request.inputs, parameters)).tensors()
        except RefusedError as error:
            if error.code is Code.UNKNOWN:  # the door knows the model: Triton is about to end
                raise away() from None
            raise

    def abandon(self, request: InferRequest) -> None:
        if request.number not in self._calls:
            return
        text = np.array([[b"-"]], np.object_)
        inputs = [Tensor.of_array(each.name, text) for each in request.inputs]
        self._start(self._abandon(request, inputs))

    async def _abandon(self, request: InferRequest, inputs: Sequence[Tensor]) -> None:
        parameters: dict[str, bool | float | str]
        parameters = {ABANDON: request.number, CALLER: request.caller}
        with suppress(RefusedError):  # nobody waits for the answer
            await self._infer(request.model, inputs, parameters)

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that goes on even if nobody waits for it."""
        task = asyncio.create_task(work)
        self._further.add(task)
        task.add_done_callback(self._further.discard)
        return task

    async def _infer(
        self, model: str, inputs: Sequence[Tensor], parameters: Mapping[str, bool | float | str]
    ) -> Answer:
        content = {
            "parameters": {**parameters, "binary_data_output": True},
            "inputs": [
                {
                    "name": each.name,
                    "datatype": each.datatype,
                    "shape": each.shape,
                    "parameters": {BINARY_SIZE: len(each.data)},
                }
                for each in inputs
            ],
        }
        return await self._ask(
            "POST", f"{_path(model)}/infer", content, [each.data for each in inputs]
        )

    async def _ask(
        self, method: str, path: str, content: object = None, data: Sequence[bytes] = ()
    ) -> Answer:
        """Return Triton's answer.

        Raises:
            RefusedError: there is no answer, or it is an error.
        """
        if self.http is None or self.ended is None or self.ended.done():
            raise away()
        try:
            answer = await self.http.ask(method, path, content, data)
        except UnsentError:
            raise away() from None
        except ConnectionResetError:
            raise await self._lost() from None
        if answer.status == HTTPStatus.OK:
            return answer
        code = CODES.get(answer.status, Code.FAILED)
        after_s = RETRY_AFTER_S if code is Code.UNAVAILABLE else None
        raise RefusedError(code, answer.error(), after_s)

    async def _lost(self) -> RefusedError:
        """Return the refusal of a request whose connection ended."""
        return ended()

    async def _states(self) -> Sequence[ModelState]:
        index = await self._ask("POST", "/v2/repository/index", {})
        return [
            ModelState(each["name"], *(each.get(key, "") for key in ("version", "state", "reason")))
            for each in index.json()
        ]

    def is_ready(self) -> bool:
        return bool(self._models)

    async def _refresh(self) -> None:
        """Update the models that clients may call, without those called by models."""
        versions: dict[str, int] = {}
        for each in await self._states():
            if each.state == "READY":
                versions[each.name] = max(int(each.version), versions.get(each.name, 0))
        models = {}
        for name, version in versions.items():
            answer = await self._ask("GET", f"{_path(name)}/config")
            config = model_config_of(answer.json())
            if "artifact" in config.parameters:
                models[name] = model_of(config, str(version))
        self._models = models


def _path(model: str, folder: str = "models") -> str:
    return f"/v2/{folder}/{quote(model, safe='')}"


async def _answer_of(call: asyncio.Task[T]) -> T:
    """Return the result of a call, which goes on if its caller is cancelled.

    Raises:
        RefusedError: the call failed.
    """
    # retrieved even if nobody waits, since asyncio reports errors that are not
    call.add_done_callback(lambda done: done.cancelled() or done.exception())
    return await asyncio.shield(call)


class TritonEngine(AskedTriton):
    """A Triton that the door starts and ends.

    Args:
        triton: processes of Triton.
    """

    def __init__(self, triton: Triton) -> None:
        super().__init__(triton.models, triton.token)
        self.triton = triton
        self._launching: asyncio.Future[None] | None = None

    async def start(self) -> None:
        """Start Triton, and return once its models are ready.

        Raises:
            ServingError: Triton ended, or was not ready in time.
            ConfigError, ModelError: as for `Triton.launch`.
        """
        for left in reversed(range(LAUNCHES)):
            try:
                await self._launch()
                break
            except ServingError as error:
                # another process took the metrics port
                if not left or PORT_IN_USE not in str(error):
                    raise

    async def _launch(self) -> None:
        """Start Triton, and wait until its models are ready and known."""
        self._close()
        self._launching = asyncio.ensure_future(asyncio.to_thread(self.triton.launch))
        await asyncio.shield(self._launching)
        self._watch_end()
        self._open(self.triton.address)
        await self._until_ready()
        try:
            await self._check_closed()
            await self._refresh()
        except (RefusedError, ConnectionError) as error:  # it has ended since
            raise ServingError(f"the server did not start: {self.triton.reason}") from error

    def _watch_end(self) -> None:
        """Resolve `ended` when the supervisor ends."""
        assert self.triton.supervisor is not None
        loop = asyncio.get_running_loop()
        self.ended = ended = loop.create_future()
        descriptor = os.pidfd_open(self.triton.supervisor.pid)

        def note() -> None:
            loop.remove_reader(descriptor)
            os.close(descriptor)
            if not ended.done():
                ended.set_result(None)

        loop.add_reader(descriptor, note)

    async def _lost(self) -> RefusedError:
        if self.http is None:  # the door has given this Triton up
            return ended()
        assert self.ended is not None and self.triton.supervisor is not None
        # on an orderly shutdown, Triton closes its connections before it exits with status 0
        await asyncio.wait({self.ended}, timeout=CRASH_S)
        return ended() if self.triton.supervisor.poll() else away()

    async def _until_ready(self) -> None:
        assert self.ended is not None
        timeout_s = self.triton.config.ready_timeout_s
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not await self._are_ready():
            if self.ended.done():
                raise ServingError(f"the server did not start: {self.triton.reason}")
            if loop.time() > deadline:
                raise ServingError(
                    f"the server was not ready within {timeout_s:g} s: {self.triton.reason} Give "
                    "it longer with --ready-timeout-s."
                )
            await asyncio.sleep(POLL_S)

    async def _check_closed(self) -> None:
        """Check that Triton refuses requests without the token, before using it."""
        open_http = TritonHttp(self.triton.address, token="")
        try:
            status = (await open_http.ask("GET", LIVE)).status
        finally:
            open_http.close()
        if status != HTTPStatus.FORBIDDEN:  # Triton's status without its token
            raise ServingError(
                "the server answered a request without the token, and was stopped: its routes are "
                "open. Use a version of the server that knows --http-restricted-api."
            )

    async def stop(self) -> None:
        """End Triton, and remove the workspace."""
        self._close()
        if self._launching is not None:  # its waiter may have gone
            await asyncio.wait({self._launching})
        await asyncio.to_thread(self.triton.end)

    def hurry(self) -> None:
        """Do not let `stop` wait."""
        self.triton.hurry()

    async def kill(self) -> None:
        await asyncio.to_thread(self.triton.kill)

    async def died(self) -> str:
        assert self.ended is not None and self.triton.supervisor is not None
        await asyncio.shield(self.ended)
        status = await asyncio.to_thread(self.triton.supervisor.wait)
        reason = await asyncio.to_thread(lambda: self.triton.reason)
        return f"status {status}: {reason.rstrip('.')}"

    async def repository(self) -> Sequence[ModelState]:
        return await self._states()

    async def load(self, model: str) -> None:
        await _answer_of(self._start(self._load(model)))

    async def _load(self, model: str) -> None:
        # from its folder, without files or settings from a request
        try:
            await self._ask("POST", f"{_path(model, REPOSITORY)}/load", {})
            if not model.endswith(CANDIDATE_SUFFIX):
                self.names = self.triton.models = tuple(dict.fromkeys((*self.names, model)))
        finally:
            await self._refresh()

    async def unload(self, model: str) -> None:
        await _answer_of(self._start(self._unload(model)))

    async def _unload(self, model: str) -> None:
        try:
            await self._ask("POST", f"{_path(model, REPOSITORY)}/unload", {})
            self.names = self.triton.models = tuple(each for each in self.names if each != model)
        finally:
            await self._refresh()

    async def metrics(self) -> str:
        return await asyncio.to_thread(self._metrics)

    def _metrics(self) -> str:
        connection = http.client.HTTPConnection(
            LOOPBACK, self.triton.metrics_port, timeout=METRICS_TIMEOUT_S
        )
        try:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        except (OSError, http.client.HTTPException):  # Triton is away
            return ""
        finally:
            connection.close()


LOOK_S = 1.0
ANSWER_S = 5.0
"""Longest wait for Triton's answer on whether a model is ready."""


class AttachedEngine(AskedTriton):
    """A Triton that another program starts; the door polls every second whether its models are
    ready.

    Args:
        repository: repository of the artifacts that Triton serves.
        config: settings of the door.

    Raises:
        ConfigError: the token file has no token.
    """

    def __init__(self, repository: Path, config: ServeConfig) -> None:
        assert config.triton is not None
        file = config.triton_token_file
        super().__init__(model_names(repository), "" if file is None else token_in(file))
        self.address = config.triton.removeprefix(TRITON_SCHEME)
        self.ready_timeout_s = config.ready_timeout_s
        self.expected = [
            model_of(read_model_config(repository / name / CONFIG_NAME), "")
            for name in self.names
            if name != ENCODER_NAME
        ]
        self.is_here = False
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Return once its models are ready.

        Raises:
            ServingError: the models are not ready in time, or are other ones.
        """
        await self._end()
        loop = asyncio.get_running_loop()
        self.ended = loop.create_future()
        self._open(self.address)
        deadline = loop.time() + self.ready_timeout_s
        while not await self._are_ready():
            if await self._asks_for_token():
                raise ServingError(
                    f"triton={TRITON_SCHEME}{self.address}: it has another token. Name the file "
                    f"with that of {ADMIN_HEADER} in its --http-restricted-api: "
                    "--triton-token-file."
                )
            if loop.time() > deadline:
                raise ServingError(
                    f"triton={TRITON_SCHEME}{self.address}: its models {', '.join(self.names)} were"
                    f" not ready within {self.ready_timeout_s:g} s. Start it with the repository "
                    "of `bertender serve --repository-only`, or give it longer with "
                    "--ready-timeout-s."
                )
            await asyncio.sleep(POLL_S)
        await self._update_models()
        self._looking = asyncio.create_task(self._look())

    async def _are_ready(self) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                return await super()._are_ready()
        return False

    async def _asks_for_token(self) -> bool:
        assert self.http is not None
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(ANSWER_S):
                return (await self.http.ask("GET", LIVE)).status == HTTPStatus.FORBIDDEN
        return False

    async def _update_models(self) -> None:
        """Update the models.

        Raises:
            ServingError: a model is from another artifact.
        """
        try:
            await self._refresh()
        except RefusedError as error:
            raise ServingError(f"triton={TRITON_SCHEME}{self.address}: {error}") from None
        for model in self.expected:
            found = self._models.get(model.name)
            if found is None or _about(found) != _about(model):
                self._models = {}
                raise ServingError(
                    f"triton={TRITON_SCHEME}{self.address}: its model {model.name!r} is of another "
                    "artifact than the door's. Write its repository anew: bertender serve "
                    "ARTIFACT --repository-only DIRECTORY"
                )
        self.is_here = True

    async def _look(self) -> None:
        """Poll whether the models are ready."""
        while True:
            await asyncio.sleep(LOOK_S)
            is_ready = await self._are_ready()
            if is_ready and not self.is_here:
                try:
                    await self._update_models()
                except ServingError as error:
                    logger.error("%s", error)
            else:
                self.is_here = is_ready

    def is_ready(self) -> bool:
        return self.is_here and super().is_ready()

    async def died(self) -> str:
        assert self.ended is not None
        await asyncio.shield(self.ended)
        return "which the door cannot restart"

    async def kill(self) -> None:
        """Leave Triton running; the next start opens a new connection."""
        await self._end()

    async def stop(self) -> None:
        await self._end()

    async def _end(self) -> None:
        self.is_here = False
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        self._looking = None
        self._close()
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(None)


def token_in(file: Path) -> str:
    """Return the token in a file; raise ConfigError if there is none."""
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"triton_token_file={file}: {error}.") from None
    return checked_token(text, f"triton_token_file={file}")


def _about(model: Model) -> tuple[object, ...]:
    """Return the part of a configuration that depends only on the artifact, not on settings."""
    parameters = BackendParameters.from_model_config(model.config)
    outputs = {name: each for name, each in model.outputs.items() if name != ABSTAINED}
    return model.inputs, outputs, parameters.digest
