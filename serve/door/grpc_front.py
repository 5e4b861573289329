"""The door's gRPC: the Open Inference Protocol with its published messages.

Messages arrive as bytes, so that damaged ones can be refused with INVALID_ARGUMENT.

https://github.com/kserve/open-inference-protocol
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import nullcontext
from typing import Any

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from tritonclient.grpc import model_config_pb2, service_pb2

from bertender.core.errors import ServingError
from serve.door.engine import Code, Model, RefusedError
from serve.door.requests import (
    BINARY_SIZE,
    INPUT_PARAMETERS,
    MOST_PARAMETERS,
    Asked,
    Draft,
    DraftTensor,
    binary_values,
    check_parameters,
    checked,
    invalid,
    most_body_bytes,
    shown,
)
from serve.door.service import (
    EXTENSIONS,
    FAILURE,
    SERVER_NAME,
    SERVER_VERSION,
    Door,
    DoorSettings,
    platform_of,
)
from serve.wire import ADMIN_HEADER, GRPC_ADMIN_HEADER, Tensor, width_of

logger = logging.getLogger(__name__)

SERVICE = "inference.GRPCInferenceService"
CLOSED = (
    "ModelStatistics",
    "TraceSetting",
    "LogSettings",
    *(
        f"{kind}SharedMemory{action}"
        for kind in ("System", "Cuda")
        for action in ("Status", "Register", "Unregister")
    ),
)
"""Calls of Triton's service that the door refuses."""
VISIT = "ModelInfer"
"""The inference call, whose refusals `records` counts once its message has arrived."""
PING_MS = 60_000
FEWEST_PING_MS = 10_000
"""Shortest time between the pings of a waiting client."""
MOST_CALLS = 100
"""Most calls of a connection at a time: one that reads no response must not take the calls of all
others. Clients let more calls wait."""
OLDEST_S, GRACE_S = 300.0, 170.0
"""Longest time of a connection, and more for its calls besides their wait in the queue: for a
message and a run. So responses end which nobody reads. Clients open another connection without
losing a call."""
NO_LIMIT_MS = 2**31 - 1
MOST_PENDING = 10_000
"""Calls, most of them cancelled, that grpc keeps for the event loop before it drops some."""
PATIENCE_S = 1.0
"""Longest time for a message while others wait to be read."""
LONGEST_TURN_S = 2.0
"""About the longest wait until a message is read: with many calls, each has less time."""

Method = Callable[[Any, Any], Awaitable[Any]]


def grpc_server(door: Door, models: Iterable[Model]) -> grpc.aio.Server:
    """Return a server for the running event loop; `listen` opens its port.

    Args:
        door: part shared by both protocols.
        models: models that bound the size of a message, and the time of a call.
    """
    settings = door.settings
    models = [*models]
    largest = max(map(most_body_bytes, models), default=1)
    waits_s = [each.longest_wait_s or math.inf for each in models]
    grace_ms = min(1000 * (GRACE_S + max(waits_s, default=0.0)), NO_LIMIT_MS)
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", largest),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_concurrent_streams", min(MOST_CALLS, settings.most_connections)),
            # else calls are refused for those that were answered, and are not yet cleared away
            ("grpc.http.overload_protection", 0),
            # others must not lose calls to a client that cancels its own by the thousand
            ("grpc.server.max_pending_requests", MOST_PENDING),
            ("grpc.server.max_pending_requests_hard_limit", 2 * MOST_PENDING),
            ("grpc.max_metadata_size", settings.most_head_bytes),
            ("grpc.max_connection_idle_ms", int(1000 * settings.idle_s)),
            ("grpc.max_connection_age_ms", int(1000 * OLDEST_S)),
            ("grpc.max_connection_age_grace_ms", int(grace_ms)),
            ("grpc.server_handshake_timeout_ms", int(1000 * settings.head_s)),
            ("grpc.keepalive_time_ms", PING_MS),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", FEWEST_PING_MS),
            ("grpc.max_allowed_incoming_connections", settings.most_connections),
            # else the window of a stream grows, and unread bytes are held without being counted
            ("grpc.http2.bdp_probe", 0),
            ("grpc.so_reuseport", 0),  # else a second server would take half of the connections
        ),
        maximum_concurrent_rpcs=settings.most_connections,
    )
    service = Service(door)
    at_once = max(2, settings.most_held_bytes // (2 * largest))  # twice its size in memory
    arrivals = Arrivals(settings.most_connections // 2, at_once, settings.body_s)
    handlers = {
        name: _unary(name, method, arrivals, door) for name, method in service.methods().items()
    }
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(_no_stream)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    return server


def listen(server: grpc.aio.Server, settings: DoorSettings, host: str, port: int) -> int:
    """Open a port of a server, before it starts, and return it.

    Raises:
        ServingError: the port is taken, or the TLS files are invalid.
    """
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        if settings.tls_certificate is None or settings.tls_key is None:
            return int(server.add_insecure_port(address))
        pair = (settings.tls_key.read_bytes(), settings.tls_certificate.read_bytes())
        return int(server.add_secure_port(address, grpc.ssl_server_credentials((pair,))))
    except (RuntimeError, OSError) as error:
        raise ServingError(f"no gRPC at {address}: {error}.") from None


class Arrivals:
    """Calls whose message has not arrived. Since a client could open calls without a message for
    ever and block others, the oldest call makes room.

    Args:
        most: most waiting calls.
        at_once: messages to read at a time. grpc holds their bytes uncounted; of other calls it
            reads no more than the window of a stream.
        longest_s: longest time for a message.
    """

    def __init__(self, most: int, at_once: int, longest_s: float) -> None:
        self.most = most
        self.at_once = at_once
        self.longest_s = longest_s
        self._calls = 0
        self._places = asyncio.Semaphore(at_once)
        self._reading: dict[asyncio.Task[Any], None] = {}

    async def message(self, context: Any) -> bytes:
        """Return the message of a call.

        Raises:
            RefusedError: LATE: it did not arrive in time; INVALID: there is none.
        """
        self._calls += 1
        try:
            if self._calls > self.most and self._reading:
                oldest = next(iter(self._reading))
                del self._reading[oldest]
                oldest.cancel()
            async with self._places:
                return await self._read(context)
        finally:
            self._calls -= 1

    async def _read(self, context: Any) -> bytes:
        reading = asyncio.create_task(context.read())
        self._reading[reading] = None
        clock = asyncio.get_running_loop().time
        end = clock() + self.longest_s
        try:
            while not reading.done() and (left_s := end - clock()) > 0:
                turn_s = LONGEST_TURN_S * self.at_once / self._calls
                await asyncio.wait({reading}, timeout=min(PATIENCE_S, turn_s, left_s))
                if self._calls > self.at_once:  # others wait for this place
                    break
            if not reading.done() or reading.cancelled():
                raise RefusedError(Code.LATE, "the message of the call did not come in time.")
            if (content := reading.result()) is grpc.aio.EOF:
                raise invalid("the call has no message.")
            return bytes(content)
        finally:
            self._reading.pop(reading, None)
            reading.cancel()


def _unary(name: str, method: Method, arrivals: Arrivals, door: Door) -> Any:
    """Return the handler of a call; refusals become statuses, and are counted.

    It is a stream handler for grpc, so that it runs before the message has arrived.
    """
    message = getattr(service_pb2, f"{name}Request")

    async def answer(context: Any) -> Any:
        held = 0
        try:
            with door.records.calls_refused():
                content = await arrivals.message(context)
                door.hold(len(content), len(content))
                held = len(content)
                try:
                    request = message.FromString(content)
                except (DecodeError, UnicodeDecodeError):  # by protobuf in C, and in Python
                    raise invalid(f"the message is not a {message.DESCRIPTOR.name}.") from None
                del content
            with nullcontext() if name == VISIT else door.records.calls_refused():
                return await method(request, context)
        finally:
            door.hold(-held, 0)

    # grpc keeps the frame of an aborted call until garbage collection, and the iterator its last
    # message, so neither may hold one
    async def handle(contents: AsyncIterator[bytes], context: Any) -> Any:
        try:
            return await answer(context)
        except RefusedError as error:
            error.__traceback__ = None  # a cycle with its frames
            status, reason = _status(error.code), error.reason
        except Exception:
            logger.exception("%s failed", name)
            status, reason = _status(Code.FAILED), FAILURE
        return await context.abort(status, reason)

    return grpc.stream_unary_rpc_method_handler(
        handle, response_serializer=lambda response: response.SerializeToString()
    )


def _status(code: Code) -> grpc.StatusCode:
    return grpc.StatusCode[code.grpc_status]


async def _no_stream(contents: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
    reason = "streams are not served. Send each request with ModelInfer."
    await context.abort(_status(Code.UNSUPPORTED), reason)
    yield b""


def values_of(context: Any, *names: str) -> list[str]:
    """Return the values in a call's metadata under some names."""
    metadata = context.invocation_metadata()
    return [value for name, value in metadata if name in names and isinstance(value, str)]


def metadata_of(context: Any, *names: str) -> str | None:
    """Return the first of these values."""
    return next(iter(values_of(context, *names)), None)


class Service:
    """The calls of the service."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def methods(self) -> Mapping[str, Method]:
        """Return the calls with a response, by name."""
        return {
            "ServerLive": self.server_live,
            "ServerReady": self.server_ready,
            "ModelReady": self.model_ready,
            "ServerMetadata": self.server_metadata,
            "ModelMetadata": self.model_metadata,
            "ModelConfig": self.model_config,
            "ModelInfer": self.model_infer,
            "RepositoryIndex": self.repository_index,
            "RepositoryModelLoad": self.repository_model_load,
            "RepositoryModelUnload": self.repository_model_unload,
            **{name: functools.partial(self.closed, name) for name in CLOSED},
        }

    async def server_live(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any, context: Any) -> Any:
        return service_pb2.ServerReadyResponse(ready=self.door.is_ready)

    async def model_ready(self, request: Any, context: Any) -> Any:
        await self._model(request, context)
        return service_pb2.ModelReadyResponse(ready=self.door.is_ready)

    async def server_metadata(self, request: Any, context: Any) -> Any:
        self._check_key(context)
        return service_pb2.ServerMetadataResponse(
            name=SERVER_NAME, version=SERVER_VERSION, extensions=EXTENSIONS
        )

    async def model_metadata(self, request: Any, context: Any) -> Any:
        model = await self._model(request, context)
        tensor = service_pb2.ModelMetadataResponse.TensorMetadata
        return service_pb2.ModelMetadataResponse(
            name=model.name,
            versions=[model.version],
            platform=platform_of(model),
            inputs=[
                tensor(name=name, datatype="BYTES", shape=(-1, width_of(name)))
                for name in model.inputs
            ],
            outputs=[
                tensor(name=name, datatype=datatype, shape=(-1, *shape))
                for name, (datatype, shape) in model.outputs.items()
            ],
        )

    async def model_config(self, request: Any, context: Any) -> Any:
        model = await self._model(request, context)
        config = model_config_pb2.ModelConfig()
        ParseDict(dict(model.config), config, ignore_unknown_fields=True)
        return service_pb2.ModelConfigResponse(config=config)

    async def model_infer(self, request: Any, context: Any) -> Any:
        door = self.door
        with door.records.visit("grpc", self._connection(context)) as visit:
            visit.headers = context.invocation_metadata()
            caller = door.callers.caller(metadata_of(context, "authorization"), visit.connection)
            visit.key = caller.key.name if caller.key else None
            model = await door.model(request.model_name, request.model_version)
            visit.model = model.name
            visit.number = number = door.number()
            asked = checked(draft_of(request), model, number, caller.name, is_http=False)
            visit.id = asked.id
            outputs = await door.infer(visit, asked, model, caller)
            return response_of(asked, model, outputs)

    async def repository_index(self, request: Any, context: Any) -> Any:
        self._check_admin(context)
        model = service_pb2.RepositoryIndexResponse.ModelIndex
        return service_pb2.RepositoryIndexResponse(
            models=[
                model(name=each.name, version=each.version, state=each.state, reason=each.reason)
                for each in await self.door.engine.repository()
                if each.state == "READY" or not request.ready
            ]
        )

    async def repository_model_load(self, request: Any, context: Any) -> Any:
        self._check_admin(context)
        if request.parameters:
            raise invalid("models are loaded from their folder, without parameters.")
        # its connection may reach its greatest age meanwhile
        await asyncio.shield(self.door.engine.load(request.model_name))
        return service_pb2.RepositoryModelLoadResponse()

    async def repository_model_unload(self, request: Any, context: Any) -> Any:
        self._check_admin(context)
        await self.door.engine.unload(request.model_name)
        return service_pb2.RepositoryModelUnloadResponse()

    async def closed(self, name: str, request: Any, context: Any) -> Any:
        self._check_admin(context)
        raise RefusedError(Code.UNSUPPORTED, f"{name} is not served here.")

    async def _model(self, request: Any, context: Any) -> Model:
        self._check_key(context)
        return await self.door.model(request.name, request.version)

    def _check_key(self, context: Any) -> None:
        self.door.callers.caller(metadata_of(context, "authorization"), self._connection(context))

    def _connection(self, context: Any) -> str:
        return self.door.connection(context.peer(), values_of(context, "x-forwarded-for"))

    def _check_admin(self, context: Any) -> None:
        self.door.check_admin(metadata_of(context, ADMIN_HEADER, GRPC_ADMIN_HEADER))


def draft_of(request: Any) -> Draft:
    """Read a ModelInferRequest.

    Raises:
        RefusedError: INVALID: its tensors and their data do not match.
    """
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise invalid(f"the request has {len(request.inputs)} inputs, and raw data of {len(raw)}.")
    inputs: list[DraftTensor] = []
    for place, each in enumerate(request.inputs):
        name = shown(each.name)
        parameters = _parameters(each.parameters)
        check_parameters(parameters, INPUT_PARAMETERS, False, f"the input {name}")
        if raw and each.contents.ByteSize():  # MLServer's client sends them empty
            raise invalid(f"the input {name} has both contents and raw data.")
        # not used here, but KServe's client sends it
        size = parameters.get(BINARY_SIZE)
        if size is not None and size != (len(raw[place]) if raw else 0):
            raise invalid(f"the raw data of {name} has not the {size} bytes of its parameter.")
        if raw:
            values = functools.partial(binary_values, name, raw[place])
        else:
            values = functools.partial(_contents, name, each.contents.bytes_contents)
        inputs.append(DraftTensor(each.name, each.datatype, each.shape, values))
    return Draft(
        id=request.id,
        parameters=_parameters(request.parameters),
        inputs=inputs,
        outputs=[(each.name, _parameters(each.parameters)) for each in request.outputs],
    )


def _contents(name: str, values: Sequence[bytes], count: int) -> Sequence[bytes]:
    if len(values) != count:
        raise invalid(f"the data of {name} has {len(values)} texts, its shape {count}.")
    return list(values)


def _parameters(sent: Mapping[str, Any]) -> dict[str, object]:
    if len(sent) > MOST_PARAMETERS:
        raise invalid(f"there are {len(sent)} parameters, allowed {MOST_PARAMETERS}.")
    return {
        name: getattr(value, chosen) if (chosen := value.WhichOneof("parameter_choice")) else None
        for name, value in sent.items()
    }


def response_of(asked: Asked, model: Model, outputs: Sequence[Tensor]) -> Any:
    """Return a ModelInferResponse with tensors in binary form."""
    response = service_pb2.ModelInferResponse(
        model_name=model.name, model_version=model.version, id=asked.id
    )
    for tensor, _ in asked.wanted(outputs):
        response.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        response.raw_output_contents.append(tensor.data)
    return response
