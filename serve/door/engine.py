"""Engine: what runs the models behind the door; models and requests as the door sees them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve.config import BackendParameters
from serve.wire import Tensor


@dataclass(frozen=True)
class Code:
    """A kind of refusal, in each protocol."""

    http_status: int
    grpc_status: str
    """Name of a grpc.StatusCode."""
    outcome: str
    """In the access log and the metrics."""


INVALID = Code(400, "INVALID_ARGUMENT", "invalid")
UNAUTHORIZED = Code(401, "UNAUTHENTICATED", "unauthorized")
FORBIDDEN = Code(403, "PERMISSION_DENIED", "forbidden")
UNKNOWN = Code(404, "NOT_FOUND", "unknown")
TOO_LARGE = Code(413, "RESOURCE_EXHAUSTED", "too_large")
TOO_MANY = Code(429, "RESOURCE_EXHAUSTED", "rate_limited")
CANCELLED = Code(499, "CANCELLED", "cancelled")
FAILED = Code(500, "INTERNAL", "failed")
UNSUPPORTED = Code(501, "UNIMPLEMENTED", "unsupported")
UNAVAILABLE = Code(503, "UNAVAILABLE", "unavailable")
LATE = Code(504, "DEADLINE_EXCEEDED", "late")
CODES = (
    *(INVALID, UNAUTHORIZED, FORBIDDEN, UNKNOWN, TOO_LARGE, TOO_MANY),
    *(CANCELLED, FAILED, UNSUPPORTED, UNAVAILABLE, LATE),
)


OK = "ok"
"""Outcome of a request that is answered."""
RETRY_AFTER_S = 1.0
"""Until a request that is refused for now may come again."""


class RefusedError(Exception):
    """A request that gets no prediction; the message says why, and what to do."""

    def __init__(self, code: Code, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


def away() -> RefusedError:
    """Return the refusal of a request while what runs the models is started again."""
    reason = "the model server has ended, and is started again. Send the request again later."
    return RefusedError(UNAVAILABLE, reason, RETRY_AFTER_S)


@dataclass(frozen=True)
class InferRequest:
    """A request that the door has validated."""

    number: int
    """The door's own, unique while it runs; it names the request to the engine."""
    model: str
    inputs: tuple[Tensor, ...]
    """BYTES of shape (rows, 1), or of PASSAGES (rows, passages), in the order of the model's
    inputs."""
    caller: str
    """Whose turn it is that the request takes: a key's name, or a connection's."""
    truncate: bool = False
    timeout_ms: float | None = None
    """Longest wait in the queue; None for that of the server."""

    @property
    def rows(self) -> int:
        """Examples of the request."""
        return self.inputs[0].shape[0]


@dataclass(frozen=True)
class Model:
    """A served model as requests are held against it."""

    name: str
    version: str
    inputs: tuple[str, ...]
    """Names of its inputs, each BYTES of (rows, 1), or (rows, any number)."""
    outputs: Mapping[str, tuple[str, tuple[int, ...]]]
    """Name -> datatype, and shape after the rows, -1 for any size."""
    max_batch_size: int
    """Most rows of a request."""
    max_text_bytes: int
    longest_input: int | None
    """Most tokens of an example that it reads, where its configuration says so."""
    config: Mapping[str, object]
    """Triton's configuration of it, as its extension shows it to clients."""


@dataclass(frozen=True)
class ModelState:
    """A version of a model in the repository, as Triton's index has it."""

    name: str
    version: str
    """Empty where none is loaded."""
    state: str
    """READY, LOADING, UNLOADING or UNAVAILABLE; empty where it was never loaded."""
    reason: str


NO_REPOSITORY = "this server loads no other models while it runs. Start it again with them."


class Engine(ABC):
    """Runs models. All of it is called in the door's event loop."""

    @abstractmethod
    async def start(self) -> None:
        """Start the process behind it, and return once its models are ready.

        Raises:
            ServingError: it ended, or was not ready in time.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End the process behind it, with nothing left."""

    @abstractmethod
    async def models(self) -> Mapping[str, Model]:
        """Return the models that take requests, by their names."""

    @abstractmethod
    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        """Return the outputs of a request.

        Raises:
            RefusedError: there are none; UNAVAILABLE while the process behind it is away.
        """

    @abstractmethod
    def abandon(self, request: InferRequest) -> None:
        """Say that nobody waits for a request any more; what has not run yet need not."""

    @abstractmethod
    async def died(self) -> str:
        """Return why the process behind it ended, once it does by itself."""

    @abstractmethod
    async def kill(self) -> None:
        """End the process behind it at once, as it hangs; `died` returns, and `start` may follow.

        It is not `stop`: what `start` needs stays.
        """

    def is_ready(self) -> bool:
        """Return whether requests are answered now, as the door's readiness shows it."""
        return True

    def hurry(self) -> None:  # noqa: B027 - what ends at once has nothing to hurry
        """Do not let `stop` wait, which may have begun."""

    async def repository(self) -> Sequence[ModelState]:
        """Return the versions of the models in the repository, for who has the admin token."""
        raise RefusedError(UNSUPPORTED, NO_REPOSITORY)

    async def load(self, model: str) -> None:
        """Load a model as its folder is now, for who has the admin token.

        Raises:
            RefusedError: it does not load; the reason is in the message.
        """
        raise RefusedError(UNSUPPORTED, NO_REPOSITORY)

    async def unload(self, model: str) -> None:
        """Unload a model, for who has the admin token; it stays away after a restart, too."""
        raise RefusedError(UNSUPPORTED, NO_REPOSITORY)

    async def metrics(self) -> str:
        """Return what the engine itself counts, as Prometheus reads it."""
        return ""


def model_of(config: Any, version: str) -> Model:
    """Return a model by its configuration in a repository of `bertender serve`."""
    values = as_mapping(config)
    limits = BackendParameters.from_model_config(values)
    return Model(
        name=config.name,
        version=version,
        inputs=tuple(each.name for each in config.input),
        outputs={
            each.name: (datatype(values["output"][place]["data_type"]), tuple(each.dims))
            for place, each in enumerate(config.output)
        },
        max_batch_size=config.max_batch_size,
        max_text_bytes=limits.max_text_bytes,
        longest_input=limits.max_length or limits.longest_input,
        config=values,
    )


def datatype(name: str) -> str:
    """Return the protocol's name of a type of Triton's configuration."""
    return name.removeprefix("TYPE_").replace("STRING", "BYTES")


def as_mapping(message: Any) -> dict[str, Any]:
    """Return a message of protobuf as Triton writes it as JSON: with fields that have no value,
    and numbers of 64 bits as numbers."""
    values: dict[str, Any] = {}
    for described in message.DESCRIPTOR.fields:
        value = getattr(message, described.name)
        if described.has_presence and not message.HasField(described.name):
            continue
        if hasattr(value, "items"):
            values[described.name] = {key: _plain(described, each) for key, each in value.items()}
        elif hasattr(value, "append"):
            values[described.name] = [_plain(described, each) for each in value]
        else:
            values[described.name] = _plain(described, value)
    return values


def _plain(described: Any, value: Any) -> Any:
    if hasattr(value, "DESCRIPTOR"):
        return as_mapping(value)
    if described.enum_type is not None:
        return described.enum_type.values_by_number[value].name
    return value
