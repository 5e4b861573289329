"""The address that a server listens on, and how it is written where: IPv4, and IPv6 in brackets."""

from __future__ import annotations

import ipaddress
import socket


def resolved(host: str) -> str:
    """Return the address of a host, which may be a name: of IPv4, or of IPv6 where it has no other.

    Triton's HTTP service takes no names.

    Raises:
        OSError, UnicodeError: it has none; UnicodeError for a name such as a..b.
    """
    name = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = {family: str(place[0]) for family, _, _, _, place in reversed(found)}
    return addresses.get(socket.AF_INET) or addresses[socket.AF_INET6]


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches a host; also where it has no address at all."""
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
    """Return the address at which this machine reaches a server that listens at one."""
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - asked, not bound
    return everywhere.get(address, address)


def is_ipv6(address: str) -> bool:
    return ":" in address


def in_url(address: str) -> str:
    """Return an address as it stands before a port."""
    return f"[{address}]" if is_ipv6(address) else address
