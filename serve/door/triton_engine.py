"""Engines with Triton, which the door calls over one gRPC channel.

`TritonEngine` starts and ends Triton. `AttachedEngine` does neither: Triton may be NVIDIA's
container in the door's pod. The door polls it every second, and is ready while its models are.

Calls to Triton are never cancelled and have no deadline, which would cancel them: Triton 2.51
crashes after some cancellations. Requests are given up by `abandon`.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as messages
from tritonclient.grpc import service_pb2_grpc

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
from serve.repository import model_names
from serve.repository.config_pbtxt import CONFIG_NAME, read_model_config
from serve.server.triton_process import LOOPBACK, Triton, checked_token
from serve.wire import ABSTAINED, CANDIDATE_SUFFIX, ENCODER_NAME, GRPC_ADMIN_HEADER, Tensor

logger = logging.getLogger(__name__)

T = TypeVar("T")

POLL_S = 0.05
LAUNCHES = 3
PORT_IN_USE = "already in use"
"""Triton's message for a port in use."""
METRICS_TIMEOUT_S = 5.0
CHANNEL = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a killed Triton leaves no connection behind
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.keepalive_time_ms", 2**31 - 1),
)
CODES: Mapping[grpc.StatusCode, Code] = {
    grpc.StatusCode.INVALID_ARGUMENT: Code.INVALID,
    grpc.StatusCode.NOT_FOUND: Code.UNKNOWN,
    grpc.StatusCode.DEADLINE_EXCEEDED: Code.LATE,
    grpc.StatusCode.ALREADY_EXISTS: Code.LATE,  # as the backend reports it
    grpc.StatusCode.UNAVAILABLE: Code.UNAVAILABLE,
}
"""Codes for Triton's statuses; other statuses are failures."""
UNSENT = "failed to connect"
"""Start of grpcio's message for a call that was not sent."""
RESTRICTED = "This protocol is restricted"
"""Start of Triton's refusal of a request without the token."""

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
        self.metadata = ((GRPC_ADMIN_HEADER, token),) if token else ()
        self.channel: grpc.aio.Channel | None = None
        self.stub: Any = None
        self.ended: asyncio.Future[None] | None = None
        self._models: dict[str, Model] = {}
        self._calls: dict[int, asyncio.Task[tuple[Tensor, ...]]] = {}
        self._further: set[asyncio.Task[None]] = set()
        """Calls that go on without a caller."""

    def _open(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, CHANNEL)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    async def _are_ready(self) -> bool:
        try:
            await self.stub.ServerLive(messages.ServerLiveRequest(), metadata=self.metadata)
            for name in self.names:
                request = messages.ModelReadyRequest(name=name)
                if not (await self.stub.ModelReady(request, metadata=self.metadata)).ready:
                    return False
        except grpc.aio.AioRpcError:  # Triton does not listen yet, or does not know the model yet
            return False
        return True

    async def _close(self) -> None:
        if self.channel is not None:
            await self.channel.close()
        self.channel = None

    async def models(self) -> Mapping[str, Model]:
        return self._models

    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        call = asyncio.create_task(self._ask(request))
        self._calls[request.number] = call
        call.add_done_callback(lambda done: self._calls.pop(request.number, None))
        return await _answer_of(call)

    async def _ask(self, request: InferRequest) -> tuple[Tensor, ...]:
        message = self._message(request.model, request.inputs)
        parameters = message.parameters
        parameters[CALLER].string_param = request.caller
        parameters[NUMBER].int64_param = request.number
        if request.truncate:
            parameters["truncate"].bool_param = True
        if request.counted:
            parameters["counted"].bool_param = True
        if request.timeout_ms is not None:
            parameters[WAIT_MS].double_param = request.timeout_ms
        try:
            response = await self._answer(self.stub.ModelInfer, message)
        except RefusedError as error:
            if error.code is Code.UNKNOWN:  # the door knows the model: Triton is about to end
                raise away() from None
            raise
        return tuple(
            Tensor(each.name, each.datatype, tuple(each.shape), data)
            for each, data in zip(response.outputs, response.raw_output_contents, strict=True)
        )

    def _message(self, model: str, inputs: Sequence[Tensor]) -> Any:
        return messages.ModelInferRequest(
            model_name=model,
            inputs=[
                messages.ModelInferRequest.InferInputTensor(
                    name=each.name, datatype=each.datatype, shape=each.shape
                )
                for each in inputs
            ],
            raw_input_contents=[each.data for each in inputs],
        )

    def abandon(self, request: InferRequest) -> None:
        if request.number not in self._calls:
            return
        text = np.array([[b"-"]], np.object_)
        inputs = [Tensor.of_array(each.name, text) for each in request.inputs]
        message = self._message(request.model, inputs)
        message.parameters[ABANDON].int64_param = request.number
        message.parameters[CALLER].string_param = request.caller
        self._start(self._say(message))

    def _start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start work that goes on even if nobody waits for it."""
        task = asyncio.create_task(work)
        self._further.add(task)
        task.add_done_callback(self._further.discard)
        return task

    async def _say(self, message: Any) -> None:
        """Send a request, and ignore the answer."""
        with suppress(RefusedError):
            await self._answer(self.stub.ModelInfer, message)

    async def _answer(self, route: Any, message: Any) -> Any:
        """Return Triton's answer.

        Raises:
            RefusedError: there is no answer, or it is an error.
        """
        if self.channel is None or self.ended is None or self.ended.done():
            raise away()
        try:
            return await route(message, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            raise self._refusal(error) from None
        except grpc.aio.UsageError:  # the channel was closed meanwhile
            raise away() from None

    def _refusal(self, error: grpc.aio.AioRpcError) -> RefusedError:
        if error.code() is grpc.StatusCode.CANCELLED:  # not by the door: Triton is ending
            return away()
        code, reason = CODES.get(error.code(), Code.FAILED), error.details() or str(error.code())
        if code is not Code.UNAVAILABLE:
            return RefusedError(code, reason)
        if self.channel is not None and (
            self.channel.get_state() is grpc.ChannelConnectivity.READY
        ):
            return RefusedError(Code.UNAVAILABLE, reason, RETRY_AFTER_S)
        return away() if reason.startswith(UNSENT) else ended()

    async def _states(self) -> Sequence[ModelState]:
        index = await self._answer(self.stub.RepositoryIndex, messages.RepositoryIndexRequest())
        return [
            ModelState(each.name, each.version, each.state, each.reason) for each in index.models
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
            request = messages.ModelConfigRequest(name=name)
            config = (await self._answer(self.stub.ModelConfig, request)).config
            if "artifact" in config.parameters:
                models[name] = model_of(config, str(version))
        self._models = models


async def _answer_of(call: asyncio.Task[T]) -> T:
    """Return the result of a call, which goes on if its caller is cancelled.

    Raises:
        RefusedError: the call failed, or its channel was closed meanwhile, which cancels it.
    """
    # retrieved even if nobody waits, since asyncio reports errors that are not
    call.add_done_callback(lambda done: done.cancelled() or done.exception())
    try:
        return await asyncio.shield(call)
    except asyncio.CancelledError:
        if call.cancelled():
            raise ended() from None
        raise


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
        await self._check_closed()
        await self._refresh()

    async def _launch(self) -> None:
        """Start Triton, and wait until its models are ready."""
        await self._close()
        self._launching = asyncio.ensure_future(asyncio.to_thread(self.triton.launch))
        await asyncio.shield(self._launching)
        self._watch_end()
        self._open(self.triton.grpc_address)
        await self._until_ready()

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
        try:
            await self.stub.ServerLive(messages.ServerLiveRequest())
        except grpc.aio.AioRpcError as error:
            if RESTRICTED in (error.details() or ""):
                return
        raise ServingError(
            "the server answered a request without the token, and was stopped: its routes are "
            "open. Use a version of the server that knows --grpc-restricted-protocol."
        )

    async def stop(self) -> None:
        """End Triton, and remove the workspace."""
        await self._close()
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
        request = messages.RepositoryModelLoadRequest(model_name=model)
        try:
            await self._answer(self.stub.RepositoryModelLoad, request)
            if not model.endswith(CANDIDATE_SUFFIX):
                self.names = self.triton.models = tuple(dict.fromkeys((*self.names, model)))
        finally:
            await self._refresh()

    async def unload(self, model: str) -> None:
        await _answer_of(self._start(self._unload(model)))

    async def _unload(self, model: str) -> None:
        request = messages.RepositoryModelUnloadRequest(model_name=model)
        try:
            await self._answer(self.stub.RepositoryModelUnload, request)
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
                    "with that of its --grpc-restricted-protocol: --triton-token-file."
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
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.stub.ServerLive(messages.ServerLiveRequest(), metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            return RESTRICTED in (error.details() or "")
        except TimeoutError:
            pass
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
        await self._close()
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
