"""Engine: the interface to the models behind the door, with models, requests and refusals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from serve.config import BackendParameters
from serve.wire import TOKENS, Tensor


class Code(Enum):
    """A kind of refusal: its HTTP and gRPC status, and its outcome in logs and metrics."""

    INVALID = 400, "INVALID_ARGUMENT", "invalid"
    UNAUTHORIZED = 401, "UNAUTHENTICATED", "unauthorized"
    FORBIDDEN = 403, "PERMISSION_DENIED", "forbidden"
    UNKNOWN = 404, "NOT_FOUND", "unknown"
    TOO_LARGE = 413, "RESOURCE_EXHAUSTED", "too_large"
    TOO_MANY = 429, "RESOURCE_EXHAUSTED", "rate_limited"
    CANCELLED = 499, "CANCELLED", "cancelled"
    FAILED = 500, "INTERNAL", "failed"
    UNSUPPORTED = 501, "UNIMPLEMENTED", "unsupported"
    ENDED = 502, "INTERNAL", "failed"
    UNAVAILABLE = 503, "UNAVAILABLE", "unavailable"
    LATE = 504, "DEADLINE_EXCEEDED", "late"

    def __init__(self, http_status: int, grpc_status: str, outcome: str) -> None:
        self.http_status = http_status
        self.grpc_status = grpc_status
        self.outcome = outcome


OK = "ok"
"""Outcome of an answered request."""
RETRY_AFTER_S = 1.0
"""Seconds until a temporarily refused request may be sent again."""


class RefusedError(Exception):
    """A refused request; the message has the reason and the next step."""

    def __init__(self, code: Code, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.retry_after_s = retry_after_s


def away() -> RefusedError:
    """Return the refusal for requests while the engine restarts."""
    reason = "the model server is being restarted. Send the request again later."
    return RefusedError(Code.UNAVAILABLE, reason, RETRY_AFTER_S)


def ended() -> RefusedError:
    """Return the refusal for a request that the engine had when it ended. It may be what ended it,
    so a client or proxy that sends it again after every restart must not take it for `away`."""
    reason = "the model server is not healthy: it ended while it had this request, maybe by it."
    return RefusedError(Code.ENDED, reason)


@dataclass(frozen=True)
class InferRequest:
    """A request that the door has validated."""

    number: int
    """Number of the request, unique while the door runs."""
    model: str
    inputs: tuple[Tensor, ...]
    """BYTES of shape (rows, 1), or (rows, passages) for PASSAGES, in the order of the model's
    inputs."""
    caller: str
    """Name of the key or connection whose turn the request takes."""
    truncate: bool = False
    timeout_ms: float | None = None
    """Longest wait in the queue; None for the server's."""
    counted: bool = False
    """Whether its outputs have TOKENS."""

    @property
    def rows(self) -> int:
        """Number of examples."""
        return self.inputs[0].shape[0]


@dataclass(frozen=True)
class Model:
    """A served model, and the limits of its requests."""

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
    """Most tokens of an example, if its configuration has a limit."""
    config: Mapping[str, object]
    """Its Triton configuration, as clients see it."""
    longest_wait_s: float = 0.0
    """Longest time in its queue; 0 for no limit."""


@dataclass(frozen=True)
class ModelState:
    """A version of a model in the repository, a row of Triton's index."""

    name: str
    version: str
    """Empty if no version is loaded."""
    state: str
    """READY, LOADING, UNLOADING or UNAVAILABLE; empty if it was never loaded."""
    reason: str


NO_REPOSITORY = "this server does not load models while it runs. Restart it with them."


class Engine(ABC):
    """Runs models. All methods are called in the door's event loop."""

    @abstractmethod
    async def start(self) -> None:
        """Start the engine's process, and return once its models are ready.

        Raises:
            ServingError: the process ended, or was not ready in time.
        """

    @abstractmethod
    async def stop(self) -> None:
        """End the engine's process, and remove its files."""

    @abstractmethod
    async def models(self) -> Mapping[str, Model]:
        """Return the models that take requests, by name."""

    @abstractmethod
    async def infer(self, request: InferRequest) -> tuple[Tensor, ...]:
        """Return the outputs of a request.

        Raises:
            RefusedError: there are no outputs; Code.UNAVAILABLE while the engine's process is away.
        """

    @abstractmethod
    def abandon(self, request: InferRequest) -> None:
        """Abandon a request for which nobody waits any more."""

    @abstractmethod
    async def died(self) -> str:
        """Wait until the engine's process ends by itself, and return the reason."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill the engine's process, which hangs; then `died` returns, and `start` is allowed,
        unlike after `stop`.
        """

    def is_ready(self) -> bool:
        """Return whether requests are answered now: the door's readiness."""
        return True

    def hurry(self) -> None:  # noqa: B027 - an engine that stops at once has nothing to hurry
        """Let `stop` not wait, even if it has begun."""

    async def repository(self) -> Sequence[ModelState]:
        """Return the versions of the models in the repository, for holders of the admin token."""
        raise RefusedError(Code.UNSUPPORTED, NO_REPOSITORY)

    async def load(self, model: str) -> None:
        """Load a model from its folder, for holders of the admin token.

        Raises:
            RefusedError: it does not load; the message has the reason.
        """
        raise RefusedError(Code.UNSUPPORTED, NO_REPOSITORY)

    async def unload(self, model: str) -> None:
        """Unload a model, also across restarts, for holders of the admin token."""
        raise RefusedError(Code.UNSUPPORTED, NO_REPOSITORY)

    async def metrics(self) -> str:
        """Return the engine's own metrics in Prometheus's format."""
        return ""


def model_of(config: Any, version: str) -> Model:
    """Return the model for a configuration in a repository of `bertender serve`."""
    values = as_mapping(config)
    # no response has it
    values["output"] = [each for each in values["output"] if each["name"] != TOKENS]
    limits = BackendParameters.from_model_config(values)
    return Model(
        name=config.name,
        version=version,
        inputs=tuple(each.name for each in config.input),
        outputs={
            each["name"]: (datatype(each["data_type"]), tuple(each["dims"]))
            for each in values["output"]
        },
        max_batch_size=config.max_batch_size,
        max_text_bytes=limits.max_text_bytes,
        longest_input=limits.most_tokens,
        config=values,
        longest_wait_s=limits.queue_timeout_ms / 1000,
    )


def datatype(name: str) -> str:
    """Return the protocol's name for a type in Triton's configuration."""
    return name.removeprefix("TYPE_").replace("STRING", "BYTES")


def as_mapping(message: Any) -> dict[str, Any]:
    """Return a protobuf message as Triton's JSON: with unset fields, and 64-bit integers as
    numbers."""
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
