"""Ports to listen on: free ones chosen, taken ones named before the server is started."""

from __future__ import annotations

import errno
import socket
from contextlib import ExitStack

from bertender.core.errors import PortTakenError, ServingError
from serve.config import PORT_FIELDS, ServeConfig
from serve.server.addresses import is_ipv6, resolved


def with_free_ports(config: ServeConfig) -> ServeConfig:
    """Return the config with its host as an address, and every port 0 replaced by a free one.

    Raises:
        PortTakenError: another process listens on a port; the message names the option.
        ConfigError: two of the ports are the same.
        ServingError: `host` is not an address of this machine, or the port is not allowed.
    """
    config.check_rules()
    try:
        host = resolved(config.host)
    except (OSError, UnicodeError) as error:
        raise _no_such_address(config.host, error) from None
    with ExitStack() as held:  # all are held at once, so that no two get the same
        ports = {
            name: held.enter_context(_bound(host, name, port))
            for name in PORT_FIELDS
            if (port := getattr(config, name)) is not None
        }
        chosen = {name: bound.getsockname()[1] for name, bound in ports.items()}
    return config.model_copy(update={"host": host, **chosen})


def _bound(host: str, name: str, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET6 if is_ipv6(host) else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is not taken
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise listening_error(host, name, port, error) from None
    return bound


def listening_error(host: str, name: str, port: int, error: OSError) -> ServingError:
    """Return the error for a port of the setting `name` that cannot be listened on."""
    option = f"--{name.replace('_', '-')}"
    if error.errno == errno.EADDRINUSE:
        return PortTakenError(
            f"port {port} on {host} is taken by another process. Choose another with {option} "
            "(0 takes any free one), or stop what listens there."
        )
    if error.errno == errno.EACCES:
        return ServingError(
            f"port {port} on {host} needs more rights than this user has. Choose one above 1023 "
            f"with {option}."
        )
    return _no_such_address(host, error)


def _no_such_address(host: str, error: OSError | UnicodeError) -> ServingError:
    reason = error.strerror if isinstance(error, OSError) else error
    return ServingError(
        f"cannot listen on host {host!r}: {reason}. Use an address of this machine, such as "
        "127.0.0.1 or ::1 (this machine only), 0.0.0.0 or :: (every network it is on)."
    )
