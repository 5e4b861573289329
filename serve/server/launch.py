"""The start of Triton behind its supervisor: options, closed routes, readiness, and its log.

Triton knows no users. It lets anybody who reaches a port register shared memory, load and unload
models, read statistics, and change the settings of traces and logs. Its options
`--http-restricted-api` and `--grpc-restricted-protocol` close such categories to requests without a
header. Inference, readiness and the model's description stay open.
"""

from __future__ import annotations

import http.client
import os
import re
import secrets
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bertender.core.errors import ConfigError, ServingError
from serve.config import STANDARD_OUTPUT, ServeConfig
from serve.server import supervisor
from serve.server.addresses import in_url, is_ipv6
from serve.server.installation import BACKENDS, Installation
from serve.server.supervisor import TOKEN_MARK, TOKEN_VARIABLE
from serve.server.workspace import CONTROL_SOCKET, REPOSITORY, Workspace
from serve.wire import WORKSPACE_VARIABLE

SUPERVISOR = Path(supervisor.__file__)
IN_FLIGHT_TIMEOUT_S = 10
STOP_TIMEOUT_S = 14
PROBE_TIMEOUT_S = 2.0

CATEGORIES = ("shared-memory", "model-repository", "statistics", "trace", "logging")
"""Categories of Triton's routes that no client of a classifier needs."""
HTTP_HEADER = "bertender-admin-token"
GRPC_HEADER = f"triton-grpc-protocol-{HTTP_HEADER}"
"""The key of the metadata; the prefix is Triton's."""
NO_HEADER = "closed to\neverybody"
"""The name of a header that neither protocol can carry: routes which need it are closed to all."""


ALL_CATEGORIES = (*CATEGORIES, "health", "metadata", "inference", "model-config")
"""All categories of Triton's routes."""


def door_options(host: str, metrics_port: int) -> dict[str, object]:
    """Return the options of a Triton that nobody reaches but the door."""
    address, _, port = CONTROL_SOCKET.rpartition(":")
    return {
        "allow-http": "false",
        "grpc-address": f"unix:{address}",
        "grpc-port": port,
        "metrics-address": host,
        "metrics-port": metrics_port,
        "grpc-restricted-protocol": f"{','.join(ALL_CATEGORIES)}:{HTTP_HEADER}={TOKEN_MARK}",
    }


def launch_supervised(
    installation: Installation,
    workspace: Workspace,
    models: Sequence[str],
    log_file: Path,
    *,
    log_max_bytes: int,
    options: Mapping[str, object],
    token: str,
) -> subprocess.Popen[bytes]:
    """Start Triton behind its supervisor, and return that.

    Args:
        installation: the server, assembled in the workspace.
        workspace: where it runs, with the model repository.
        models: names of those that are loaded at the start.
        log_file: its log.
        log_max_bytes: of a log that is a file, beyond which it is begun anew.
        options: where it listens, and who may ask; TOKEN_MARK stands for the token.
        token: opens the routes that the options close.
    """
    locks = [] if workspace.lock is None else [workspace.lock]
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", str(SUPERVISOR)),
            *(f"--lock={lock}" for lock in locks),
            *(str(workspace.path), workspace.shared_memory, str(log_file)),
            *(str(log_max_bytes), str(STOP_TIMEOUT_S)),
            *triton_command(installation, workspace, models, options),
        ],
        stdin=subprocess.PIPE,
        pass_fds=locks,
        cwd=workspace.path,  # the stub imports from its folder first: not from the user's
        env={
            **installation.environment(),
            TOKEN_VARIABLE: token,
            WORKSPACE_VARIABLE: str(workspace.path),
        },
        start_new_session=True,  # Ctrl-C is for bertender, which then stops the server
    )


def triton_command(
    installation: Installation,
    workspace: Workspace,
    models: Sequence[str],
    listening: Mapping[str, object],
) -> list[str]:
    """Return Triton's command line; TOKEN_MARK stands for the token in it."""
    options = {
        # both in the workspace, where the server runs: Triton hands them to a shell, which would
        # split a path with a space
        "model-repository": REPOSITORY,
        "backend-directory": BACKENDS,
        "backend-config": f"python,shm-region-prefix-name={workspace.shared_memory}",
        "exit-timeout-secs": IN_FLIGHT_TIMEOUT_S,
        # else the server is not ready while `bertender deploy` loads a model next to the others
        "strict-readiness": "false",
        # other ways to the same routes, which an environment variable may open
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
        **listening,
    }
    return [
        str(installation.binary),
        "--disable-auto-complete-config",  # completing would start the stub twice
        "--model-control-mode=explicit",  # its routes are closed to who has no token
        *(f"--load-model={name}" for name in models),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def launch(
    installation: Installation,
    workspace: Workspace,
    models: Sequence[str],
    log_file: Path,
    config: ServeConfig,
) -> subprocess.Popen[bytes]:
    """Start Triton behind its supervisor, and return that.

    Args:
        installation: the server, assembled in the workspace.
        workspace: where it runs, with the model repository.
        models: names of those that are loaded at the start.
        log_file: its log.
        config: its ports, who may administer it, and how it is watched.

    Raises:
        ConfigError: as `admin_token`.
    """
    traces = (str(workspace.path), workspace.shared_memory, str(log_file))
    log_max_bytes = int(config.log_max_mb * 2**20)
    locks = [] if workspace.lock is None else [workspace.lock]
    token = {}
    if config.admin_token_file is not None:
        token = {TOKEN_VARIABLE: admin_token(config.admin_token_file)}
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", str(SUPERVISOR)),
            *(["--restart"] if config.restart else []),
            *(f"--lock={lock}" for lock in locks),
            *(*traces, str(log_max_bytes), str(STOP_TIMEOUT_S)),
            *command(installation, workspace, models, config),
        ],
        stdin=subprocess.PIPE,
        pass_fds=locks,
        cwd=workspace.path,  # the stub imports from its folder first: not from the user's
        env={
            **installation.environment(),
            **token,
            WORKSPACE_VARIABLE: str(workspace.path),
        },
        start_new_session=True,  # Ctrl-C is for bertender, which then stops the server
    )


def command(
    installation: Installation, workspace: Workspace, models: Sequence[str], config: ServeConfig
) -> list[str]:
    """Return Triton's command line; TOKEN_MARK stands for the token in it."""
    host = f"ipv6:{config.host}" if is_ipv6(config.host) else config.host  # how libevhtp wants it
    if config.grpc_port is not None:
        grpc = {"grpc-address": in_url(config.host), "grpc-port": config.grpc_port}
    elif config.admin_token_file is not None:
        # for `bertender deploy` alone: a socket that nobody but the server's user reaches
        address, _, port = CONTROL_SOCKET.rpartition(":")
        grpc = {"grpc-address": f"unix:{address}", "grpc-port": port}
    else:
        grpc = {"allow-grpc": "false"}
    who = f"{NO_HEADER}=-" if config.admin_token_file is None else f"{HTTP_HEADER}={TOKEN_MARK}"
    closed = f"{','.join(CATEGORIES)}:{who}"
    options = {
        # both in the workspace, where the server runs: Triton hands them to a shell, which would
        # split a path with a space
        "model-repository": REPOSITORY,
        "backend-directory": BACKENDS,
        "http-address": host,
        "metrics-address": host,
        "http-port": config.http_port,
        **grpc,
        "metrics-port": config.metrics_port,
        "backend-config": f"python,shm-region-prefix-name={workspace.shared_memory}",
        "exit-timeout-secs": IN_FLIGHT_TIMEOUT_S,
        # else the server is not ready while `bertender deploy` loads a model next to the others
        "strict-readiness": "false",
        # other ways to the same routes, which an environment variable may open
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
        "http-restricted-api": closed,
        "grpc-restricted-protocol": closed,
    }
    return [
        str(installation.binary),
        "--disable-auto-complete-config",  # completing would start the stub twice
        "--model-control-mode=explicit",  # its routes are closed to who has no token
        *(f"--load-model={name}" for name in models),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def is_ready(host: str, port: int, models: Sequence[str]) -> bool:
    """Return whether all models are ready.

    Asked by plain HTTP: an interrupt inside tritonclient's event loop would print a traceback.
    """
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    try:
        for name in models:
            connection.request("GET", f"/v2/models/{name}/ready")
            response = connection.getresponse()
            response.read()  # the connection has the next request
            if response.status != http.HTTPStatus.OK:
                return False
    except (OSError, http.client.HTTPException):  # nothing listens yet, or a stranger does
        return False
    finally:
        connection.close()
    return True


TOKEN_BYTES = 32
TOKEN = re.compile(r"[A-Za-z0-9_~.+/-]{16,256}")
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def admin_token(file: Path) -> str:
    """Return the token in a file, which is written if it is missing.

    Raises:
        ConfigError: other users may read the file, or it holds no token.
    """
    try:
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        else:
            with os.fdopen(descriptor, "w", encoding="utf-8") as target:
                target.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        with file.open(encoding="utf-8") as source:
            rights = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            text = source.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"admin_token_file={file}: {error}. Name a file that this user can read, or one that "
            "does not exist yet and can be written."
        ) from None
    if rights & OTHERS:
        raise ConfigError(
            f"admin_token_file={file}: other users may read it (mode {rights:o}), and whoever has "
            f"the token controls the server. Take the rights away: chmod 600 {file}"
        )
    if not TOKEN.fullmatch(text):
        raise ConfigError(
            f"admin_token_file={file}: no token in it. It holds one line of 16 to 256 letters, "
            "digits or _ ~ . + / -. Remove the file, and a random token is written there."
        )
    return text


INDEX = "/v2/repository/index"
INDEX_TIMEOUT_S = 5.0


def check_closed(host: str, port: int) -> None:
    """Ask a server for its models without the token: a server must refuse it before it is used.

    Raises:
        ServingError: it does not.
    """
    connection = http.client.HTTPConnection(host, port, timeout=INDEX_TIMEOUT_S)
    try:
        connection.request("POST", INDEX)
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise ServingError(f"the server does not respond to POST {INDEX}: {error}") from None
    finally:
        connection.close()
    if status != http.HTTPStatus.FORBIDDEN:
        raise ServingError(
            f"the server answers POST {INDEX} without the token by status {status}, expected "
            f"{http.HTTPStatus.FORBIDDEN:d}: its administrative routes are not closed, so it was "
            "stopped. Use another version of the server, which knows --http-restricted-api."
        )


def begin_log(log_file: Path) -> int:
    """Return the size in bytes of a log that can be written; it is created if it is missing.

    Raises:
        ConfigError: it cannot be written.
    """
    if log_file == STANDARD_OUTPUT:
        return 0
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab", buffering=0):
            return log_file.stat().st_size if log_file.is_file() else 0
    except OSError as error:
        raise ConfigError(
            f"log_file={log_file}: {error.strerror}. Name a file that this user can write with "
            "--log-file, or - for standard output."
        ) from None


ENDS = re.compile(
    r"^bertender: (the Python stub\b.+|the server was ended by .+|the server does not answer.+)$",
    re.M,
)
"""What the supervisor writes about the end of a server, before it may start it again."""
STARTS_AGAIN = re.compile(r"^bertender: the server ended, status .+; it starts again in .+$", re.M)
"""What it writes next: a later start may end for another reason, which is then the one."""
FOLLOWS_FROM_AN_ERROR = "SIGABRT"
NEAR_LINES = 20
"""Lines before such an end that may have its cause."""

REASONS = (
    re.compile(r"^(bash: .+)$", re.M),  # which cannot start a stub
    re.compile(
        r"failed to load '[^']+' version \d+: (?:Internal: )?(.+?)(?:\\n\\nAt:.*|\"?)$", re.M
    ),
    re.compile(r"(failed to start .+ service: .+?)\s*\"?$", re.M),
    re.compile(r"^(.+error while loading shared libraries.+)$", re.M),
    re.compile(r"^(?:E\d{4} .*?\] (?!\"CudaDriver)\"?|error: )(.+?)\"?$", re.M),
)
"""Reasons in a server's log for its end, the clearest first. Without a GPU, each log also has an
error about the CUDA driver, which ends nothing."""


def failure_reason(log_file: Path, start: int = 0) -> str:
    """Return the line of a server's log with the reason of its end, or where to read on.

    Args:
        log_file: the log.
        start: its size in bytes when the server started; a shorter log has been begun anew.
    """
    if log_file == STANDARD_OUTPUT:
        return "the reason is in its log, on standard output."
    content = log_file.read_bytes() if log_file.is_file() else b""
    log = content[start if start <= len(content) else 0 :].decode(errors="replace")
    if reason := _reason_in(STARTS_AGAIN.split(log)[-1]) or _reason_in(log):
        return reason
    return f"its log has no reason; its last lines: {' | '.join(log.splitlines()[-3:]) or '-'}"


def _reason_in(log: str) -> str | None:
    """Return what the supervisor says of an end, or else the clearest error."""
    if not (ends := [*ENDS.finditer(log)]):
        return _error_in(log)
    end = ends[-1][1]
    near = "\n".join(log[: ends[-1].start()].splitlines()[-NEAR_LINES:])
    cause = _error_in(near) if FOLLOWS_FROM_AN_ERROR in end else None
    return f"{end}; before that: {cause}" if cause else end


def _error_in(log: str) -> str | None:
    """Return the clearest error of some lines; of several, the last."""
    for pattern in REASONS:
        if found := pattern.findall(log):
            return " ".join(found[-1].replace(r"\n", " ").split())  # Triton escapes newlines
    return None
