"""Differences between the protocols, and between the modules of tritonclient that speak them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritonclient.utils import InferenceServerException

from serve.client.failures import CLOSED, OVERLOADED, REFUSED, Failure
from serve.probe import NO_ROOM
from serve.wire import TRUNCATE

if TYPE_CHECKING:
    from serve.client.access import Access

TRUNCATING = {TRUNCATE: True}
"""Parameters of a request whose texts may be longer than the model's input, as locally."""

STUB_DIED = "is not healthy"
"""Part of Triton's response to a request that the process of the model died with, a 500; the server
goes on, or starts again."""

Headers = Mapping[str, str]
"""Of one request: the key of the server."""

StatusFailures = Mapping[str, Failure]
"""Status of a response -> what it means; others are refusals."""


@dataclass(frozen=True)
class Protocol:
    """A row of PROTOCOLS."""

    name: str
    """The scheme of its urls, which ends in `s` with TLS."""
    default_port: int
    tensor: Callable[..., Any]
    connect: Callable[[str, Access, float], Any]
    """(host:port, access, timeout in seconds) -> a client"""
    connect_async: Callable[[str, Access], Any]
    """(host:port, access) -> a client whose methods are awaited"""
    model_config: Callable[[Any, str, float, Headers], Any]
    """(client of either kind, name of the model, timeout in seconds, headers) -> the response about
    the model"""
    config_of: Callable[[Any], dict[str, Any]]
    """that response -> the configuration in it"""
    infer: Callable[[Any, str, Sequence[Any], float, Headers], Any]
    """(client of either kind, name of the model, input tensors, timeout in seconds, headers) -> the
    result"""
    limit: Callable[[float], AbstractContextManager[Any]]
    """timeout in seconds -> ends a block that takes longer, where the client itself does not"""
    limit_async: Callable[[float], AbstractAsyncContextManager[Any]]
    failure: Callable[[Exception], Failure | None]
    """What an error of these clients means; None for an error that is not theirs."""


def failure_of(
    error: Exception,
    statuses: StatusFailures,
    kinds: Sequence[tuple[type[Exception] | tuple[type[Exception], ...], Failure]],
) -> Failure | None:
    """Return what an error means: by the status of a response, or by the first kind that it is."""
    if isinstance(error, InferenceServerException):
        message = error.message() or ""
        if NO_ROOM in message:
            return OVERLOADED
        if STUB_DIED in message:
            return CLOSED
        return statuses.get(error.status() or "", REFUSED)
    return next((failure for kind, failure in kinds if isinstance(error, kind)), None)
