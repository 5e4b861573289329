"""Triton's routes that load and unload models, asked with the administrative token.

Over gRPC: while Triton loads a model that was requested over HTTP, it holds one of the threads of
its HTTP service, and every connection of that thread waits (seen with Triton 2.51). A server that
does not listen for gRPC has it at a socket of its own user (see `serve/launch.py`).

No version is loaded again while it is served: under load, that damages the memory of Triton 2.51,
which then hangs. A new number next to the old one does no harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from bertender.core.errors import ConfigError, DeploymentError
from serve.administration import GRPC_HEADER

__all__ = ["ModelControl"]

POLL_S = 0.1
CHANNEL = (("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1))
"""No token to another machine, and time enough to connect to a busy server."""
IN_MEMORY = frozenset({"READY", "LOADING", "UNLOADING"})
"""States of a version that takes memory."""
REFUSED = "StatusCode.UNAVAILABLE"
LATE = "StatusCode.DEADLINE_EXCEEDED"
NO_TOKEN = "This protocol is restricted"  # noqa: S105 - how Triton begins its refusal


def _nothing() -> None: ...


@dataclass(frozen=True)
class ModelControl:
    """Loads and unloads models of one server.

    Each method waits for what it asks for, `timeout_s` at most, and raises DeploymentError with the
    server's reason where that fails.
    """

    address: str
    """Of its gRPC service: host:port, or unix: and the path of a socket."""
    token: str = field(repr=False)
    timeout_s: float
    check_address: Callable[[], None] = _nothing
    """Called before each request, which holds the token; raises where another may listen there."""

    def check_token(self) -> None:
        """Raise ConfigError where the server does not know the token."""
        self._index()

    def load(self, model: str) -> None:
        """Load a model as its folder is now; the loaded one answers until the new one is ready."""
        self._ask(f"load {model}", lambda client, **how: client.load_model(model, **how))

    def unload(self, model: str) -> None:
        """Unload a model, all that it has begun first; one that is not loaded is no error."""
        if self.versions(model):
            self._ask(f"unload {model}", lambda client, **how: client.unload_model(model, **how))
        self.wait_for(model)

    def wait_for(self, model: str, *versions: int) -> None:
        """Wait until no other version of a model takes memory."""
        deadline = time.monotonic() + self.timeout_s
        while leaving := self.versions(model) - {*versions}:
            if time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(leaving)))
                raise DeploymentError(
                    f"version {names} of {model!r} is still loaded after {self.timeout_s:g} s. "
                    "Give it longer with --timeout-s."
                )
            time.sleep(POLL_S)

    def versions(self, model: str) -> set[int]:
        """Return the versions of a model that take memory."""
        return {version for version, state in self._states(model) if state in IN_MEMORY}

    def is_ready(self, model: str, version: int) -> bool:
        """Return whether a version of a model answers."""
        return (version, "READY") in self._states(model)

    def _states(self, model: str) -> set[tuple[int, str]]:
        return {
            (int(each.version or 0), each.state)
            for each in self._index().models
            if each.name == model
        }

    def _index(self) -> Any:
        return self._ask(
            "list its models", lambda client, **how: client.get_model_repository_index(**how)
        )

    def _ask(self, wish: str, call: Callable[..., Any]) -> Any:
        self.check_address()
        how = {"headers": {GRPC_HEADER: self.token}, "client_timeout": self.timeout_s}
        with _client(self.address) as client:
            try:
                return call(client, **how)
            except InferenceServerException as error:
                raise self._failure(wish, error) from None

    def _failure(self, wish: str, error: InferenceServerException) -> ConfigError | DeploymentError:
        reason, status = " ".join(str(error.message()).split()), error.status()
        if status == REFUSED and reason.startswith(NO_TOKEN):
            return ConfigError(
                "admin_token_file: the server refuses this token. Name the file that `bertender "
                "serve --admin-token-file` was started with."
            )
        if status == LATE:
            return DeploymentError(
                f"the server did not {wish} within {self.timeout_s:g} s. Give it longer with "
                "--timeout-s."
            )
        return DeploymentError(f"the server does not {wish}: {reason}")


@contextmanager
def _client(address: str) -> Iterator[Any]:
    client = tritonclient.grpc.InferenceServerClient(address, channel_args=CHANNEL)
    try:
        yield client
    finally:
        client.close()
