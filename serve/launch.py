"""The start of Triton: its options, behind the supervisor and the program that hides its token."""

from __future__ import annotations

import http.client
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serve.backend.in_flight import WORKSPACE_VARIABLE
from serve.config import ServeConfig
from serve.server.addresses import in_url, is_ipv6
from serve.server.installation import BACKENDS, Installation

SUPERVISOR = Path(__file__).with_name("supervisor") / "__main__.py"
HIDDEN_ARGUMENTS = Path(__file__).with_name("hidden_arguments.py")
REPOSITORY = "models"
"""The model repository in a workspace: itself, or a link to it."""
IN_FLIGHT_TIMEOUT_S = 10
CONTROL_SOCKET = "control:1"
"""Name of a socket in the workspace; Triton puts what it takes for a port behind a colon."""
STOP_TIMEOUT_S = 14
PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class Place:
    """Files and folders of a server."""

    models: tuple[str, ...]
    """Names of those that are loaded at the start."""
    workspace: Path
    shared_memory: str
    """How the names of its regions begin."""
    log_file: Path
    lock: int | None
    """The file descriptor that says that the workspace is in use."""


def launch(
    installation: Installation, place: Place, config: ServeConfig, closing: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start Triton behind its supervisor, and return that.

    Args:
        installation: the server, assembled in the workspace.
        place: what it reads and leaves behind.
        config: its ports, and how it is watched.
        closing: variables whose values are arguments that nobody may read in a command line.
    """
    traces = (str(place.workspace), place.shared_memory, str(place.log_file))
    log_max_bytes = int(config.log_max_mb * 2**20)
    locks = [] if place.lock is None else [place.lock]
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", str(SUPERVISOR)),
            *(["--restart"] if config.restart else []),
            *(f"--lock={lock}" for lock in locks),
            *(*traces, str(log_max_bytes), str(STOP_TIMEOUT_S)),
            *(sys.executable, "-I", "-S", str(HIDDEN_ARGUMENTS)),
            *_command(installation, place, config),
            *(f"@{variable}" for variable in closing),
        ],
        stdin=subprocess.PIPE,
        pass_fds=locks,
        cwd=place.workspace,  # the stub imports from its folder first: not from the user's
        env={
            **installation.environment(),
            **closing,
            WORKSPACE_VARIABLE: str(place.workspace),
        },
        start_new_session=True,  # Ctrl-C is for bertender, which then stops the server
    )


def _command(installation: Installation, place: Place, config: ServeConfig) -> list[str]:
    options = {
        # both in the workspace, where the server runs: Triton hands them to a shell, which would
        # split a path with a space
        "model-repository": REPOSITORY,
        "backend-directory": BACKENDS,
        # how libevhtp wants it
        "http-address": f"ipv6:{config.host}" if is_ipv6(config.host) else config.host,
        "metrics-address": f"ipv6:{config.host}" if is_ipv6(config.host) else config.host,
        "http-port": config.http_port,
        **_grpc_options(config),
        "metrics-port": config.metrics_port,
        "backend-config": f"python,shm-region-prefix-name={place.shared_memory}",
        "exit-timeout-secs": IN_FLIGHT_TIMEOUT_S,
        # else the server is not ready while `bertender deploy` loads a model next to the others
        "strict-readiness": "false",
        # other ways to the same routes, which an environment variable may open
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
    }
    return [
        str(installation.binary),
        "--disable-auto-complete-config",  # completing would start the stub twice
        "--model-control-mode=explicit",  # its routes are closed to who has no token
        *(f"--load-model={name}" for name in place.models),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def _grpc_options(config: ServeConfig) -> Mapping[str, object]:
    """Return where gRPC is: at its port; for `bertender deploy` alone, at a socket in the
    workspace, which nobody but the server's user reaches; or nowhere."""
    if config.grpc_port is not None:
        return {"grpc-address": in_url(config.host), "grpc-port": config.grpc_port}
    if config.admin_token_file is not None:
        address, _, port = CONTROL_SOCKET.rpartition(":")
        return {"grpc-address": f"unix:{address}", "grpc-port": port}
    return {"allow-grpc": "false"}


def is_ready(host: str, port: int, models: Sequence[str]) -> bool:
    """Return whether all models are ready.

    Asked by plain HTTP: an interrupt inside tritonclient's event loop would print a traceback.
    """
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    try:
        return all(_is_model_ready(connection, name) for name in models)
    except (OSError, http.client.HTTPException):  # nothing listens yet, or a stranger does
        return False
    finally:
        connection.close()


def _is_model_ready(connection: http.client.HTTPConnection, name: str) -> bool:
    connection.request("GET", f"/v2/models/{name}/ready")
    response = connection.getresponse()
    response.read()  # the connection has the next request
    return response.status == http.HTTPStatus.OK
