"""Triton alone on a model repository, without the door: its routes are open."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from bertender.core.errors import ServingError
from serve.repository.config_pbtxt import CONFIG_NAME
from serve.server.addresses import free_ports
from serve.server.installation import find_installation
from serve.server.triton_process import RESTRICTED, failure_reason, launch
from serve.server.workspace import REPOSITORY, Workspace
from serve.wire import GRPC_ADMIN_HEADER

HOST = "127.0.0.1"
PORTS = ("http-port", "grpc-port", "metrics-port")
READY_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class BareTriton:
    """A running Triton."""

    http_port: int
    grpc_port: int

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://{HOST}:{self.grpc_port}"


@contextmanager
def bare_triton(
    models: Path, folder: Path, *, ports: Mapping[str, int] | None = None, token: str = ""
) -> Iterator[BareTriton]:
    """Serve a repository inside the block, on loopback ports.

    Args:
        models: the repository.
        folder: for what Triton needs while it runs; it is removed.
        ports: by their options; the others are free ones.
        token: opens its routes; they are open without one.

    Raises:
        ServingError: it is not ready in time.
    """
    _, taken = free_ports(HOST, {**dict.fromkeys(PORTS, 0), **(ports or {})})
    options: dict[str, object] = {name.replace("port", "address"): HOST for name in taken}
    options |= taken
    if token:
        options |= dict.fromkeys(("grpc-restricted-protocol", "http-restricted-api"), RESTRICTED)
    log = folder.with_suffix(".log")
    names = [each.parent.name for each in sorted(models.glob(f"*/{CONFIG_NAME}"))]
    with Workspace(folder) as workspace:
        installation = find_installation()
        installation.assemble(workspace.path)
        (workspace.path / REPOSITORY).symlink_to(models.resolve())
        triton = launch(
            installation, workspace, names, log, log_max_bytes=2**26, options=options, token=token
        )
        try:
            running = BareTriton(taken["http-port"], taken["grpc-port"])
            with tritonclient.grpc.InferenceServerClient(f"{HOST}:{running.grpc_port}") as client:
                deadline = time.monotonic() + READY_TIMEOUT_S
                while not _is_ready(client, names, {GRPC_ADMIN_HEADER: token}):
                    if triton.poll() is not None or time.monotonic() > deadline:
                        raise ServingError(f"Triton is not ready: {failure_reason(log)}")
                    time.sleep(0.1)
            yield running
        finally:
            assert triton.stdin is not None
            triton.stdin.close()
            triton.wait()


def _is_ready(
    client: tritonclient.grpc.InferenceServerClient, models: list[str], headers: Mapping[str, str]
) -> bool:
    try:
        return all(client.is_model_ready(name, headers=headers) for name in models)
    except InferenceServerException:  # it does not listen yet
        return False
