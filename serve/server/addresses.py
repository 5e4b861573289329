"""Addresses and ports of a server: IPv4, IPv6 in brackets, and free ports."""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Mapping
from contextlib import ExitStack

from bertender.core.errors import PortTakenError, ServingError
from serve.config import PORT_FIELDS, ServeConfig


def resolved(host: str) -> str:
    """Return the address of a host: IPv4, or IPv6 if there is no other.

    Raises:
        OSError, UnicodeError: the host has no address; UnicodeError for a name such as a..b.
    """
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = {family: str(place[0]) for family, _, _, _, place in reversed(found)}
    return addresses.get(socket.AF_INET) or addresses[socket.AF_INET6]


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a host; also True for a host without address."""
    try:
        return ipaddress.ip_address(resolved(host)).is_loopback
    except (OSError, UnicodeError):
        return True


def is_same_host(host: str, other: str) -> bool:
    """Return whether two hosts have the same address."""
    try:
        return resolved(host) == resolved(other)
    except (OSError, UnicodeError):
        return False


def reachable(address: str) -> str:
    """Return the address at which this machine can reach a server."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound
    return everywhere.get(address, address)


def is_ipv6(address: str) -> bool:
    return ":" in address


def in_url(address: str) -> str:
    """Return an address for a URL, in brackets for IPv6."""
    return f"[{address}]" if is_ipv6(address) else address


def free_ports(host: str, ports: Mapping[str, int]) -> tuple[str, dict[str, int]]:
    """Return the address of a host, and its ports by setting, every 0 replaced by a free one.

    Raises:
        PortTakenError, ServingError: as `bound_ports`.
    """
    sockets = bound_ports({name: (host, port) for name, port in ports.items()})
    chosen = {name: each.getsockname()[1] for name, each in sockets.items()}
    for each in sockets.values():
        each.close()
    return resolved(host), chosen


def bound_ports(places: Mapping[str, tuple[str, int]]) -> dict[str, socket.socket]:
    """Return sockets of hosts and ports by setting, which do not listen yet.

    Raises:
        PortTakenError: another process listens on a port; the message names the option.
        ServingError: a host is not an address of this machine, or the port is not allowed.
    """
    sockets = {}
    with ExitStack() as held:  # all are open together, so that no two are equal
        for name, (host, port) in places.items():
            try:
                address = resolved(host)
            except (OSError, UnicodeError) as error:
                raise _no_such_address(host, error) from None
            family = socket.AF_INET6 if is_ipv6(address) else socket.AF_INET
            bound = held.enter_context(socket.socket(family))
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # TIME_WAIT is free
            try:
                bound.bind((address, port))
            except OSError as error:
                raise listening_error(address, name, port, error) from None
            sockets[name] = bound
        held.pop_all()
    return sockets


def with_ports(config: ServeConfig) -> tuple[ServeConfig, dict[str, socket.socket]]:
    """Return the config with its addresses and ports resolved, and the bound sockets of the ports.

    Raises:
        ConfigError: two of the ports are equal.
        PortTakenError, ServingError: as `bound_ports`.
    """
    config.check_rules()
    hosts = dict.fromkeys(PORT_FIELDS, config.host)
    hosts["metrics_port"] = config.metrics_host or config.host
    asked = {name: (host, getattr(config, name)) for name, host in hosts.items()}
    sockets = bound_ports({name: place for name, place in asked.items() if place[1] is not None})
    bound = {name: each.getsockname() for name, each in sockets.items()}
    chosen = {name: port for name, (_, port, *_) in bound.items()}
    host, metrics_host = bound["http_port"][0], bound["metrics_port"][0]
    return config.model_copy(update={"host": host, "metrics_host": metrics_host, **chosen}), sockets


def with_free_ports(config: ServeConfig) -> ServeConfig:
    """Return the config with its hosts as addresses, and every port 0 replaced by a free one.

    Raises:
        ConfigError, PortTakenError, ServingError: as `with_ports`.
    """
    config, sockets = with_ports(config)
    for each in sockets.values():
        each.close()
    return config


def listening_error(host: str, name: str, port: int, error: OSError) -> ServingError:
    """Return the error for a port of the setting `name` that cannot be listened on."""
    option = f"--{name.replace('_', '-')}"
    if error.errno == errno.EADDRINUSE:
        return PortTakenError(
            f"port {port} on {host} is taken by another process. Choose another with {option} (0 "
            "takes any free one), or stop the process there."
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
        "127.0.0.1 or ::1 (this machine only), 0.0.0.0 or :: (all its networks)."
    )
