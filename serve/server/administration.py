"""Triton's administrative routes, closed by default: they need a token that this server alone has.

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
from collections.abc import Mapping
from pathlib import Path

from bertender.core.errors import ConfigError, ServingError

CATEGORIES = ("shared-memory", "model-repository", "statistics", "trace", "logging")
"""Categories of Triton's routes that no client of a classifier needs."""

HTTP_HEADER = "bertender-admin-token"
GRPC_HEADER = f"triton-grpc-protocol-{HTTP_HEADER}"
"""The key of the metadata; the prefix is Triton's."""

TOKEN_BYTES = 32
TOKEN = re.compile(r"[A-Za-z0-9_~.+/-]{16,256}")
OTHERS = stat.S_IRWXG | stat.S_IRWXO

INDEX = "/v2/repository/index"
PROBE_TIMEOUT_S = 5.0

VARIABLES = {
    "BERTENDER_CLOSED_HTTP": "--http-restricted-api",
    "BERTENDER_CLOSED_GRPC": "--grpc-restricted-protocol",
}
"""Variables of the server's environment, and the argument of Triton that each holds."""


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def admin_token(file: Path | None) -> str:
    """Return the token in a file, which is written if it is missing; without one, a new token.

    Raises:
        ConfigError: other users may read the file, or it holds no token.
    """
    if file is None:
        return new_token()
    try:
        _write_new(file)
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


def closing_arguments(token: str) -> Mapping[str, str]:
    """Return the arguments of Triton that close the routes, by the variable that holds each.

    The command line names the variable alone (see hidden_arguments.py).
    """
    rule = f"{','.join(CATEGORIES)}:{HTTP_HEADER}={token}"
    return {variable: f"{option}={rule}" for variable, option in VARIABLES.items()}


def check_closed(host: str, port: int) -> None:
    """Ask a server for its models without the token: a server must refuse it before it is used.

    Raises:
        ServingError: it does not.
    """
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
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


def _write_new(file: Path) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(descriptor, "w", encoding="utf-8") as target:
        target.write(new_token() + "\n")
