"""Addresses of endpoints, by SCHEMES: those of PROTOCOLS, and each of them with TLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from bertender.core.errors import ConfigError, UnknownNameError
from serve.client.grpc import GRPC
from serve.client.http import HTTP
from serve.client.protocol import Protocol

DEFAULT_URL = "http://127.0.0.1:8000"

PROTOCOLS: Mapping[str, Protocol] = {each.name: each for each in (HTTP, GRPC)}

TLS_PORT = 443


@dataclass(frozen=True)
class Scheme:
    """A row of SCHEMES."""

    protocol: Protocol
    tls: bool
    default_port: int


SCHEMES: Mapping[str, Scheme] = {
    **{name: Scheme(each, False, each.default_port) for name, each in PROTOCOLS.items()},
    **{f"{name}s": Scheme(each, True, TLS_PORT) for name, each in PROTOCOLS.items()},
}


@dataclass(frozen=True)
class Address:
    """Where an endpoint is, and how it is spoken to."""

    protocol: Protocol
    tls: bool
    host: str
    host_and_port: str


def parse_url(url: str) -> Address:
    """Return the address of a url; without a scheme it is http.

    Raises:
        ConfigError: its scheme is not a row of SCHEMES, it has no host, or it has a user or a
            path.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
    except ValueError as error:  # of brackets
        raise ConfigError(f"url {url!r}: {error}. Write http://host:port.") from None
    if parts.scheme not in SCHEMES:
        raise UnknownNameError("protocol", parts.scheme, SCHEMES)
    if not (host := parts.netloc):
        raise ConfigError(f"url {url!r} names no host. Write http://host:port.")
    _check_unused(parts)  # first, so that no other error shows a password
    scheme, port = SCHEMES[parts.scheme], _port(parts)
    place = host if port else f"{host}:{scheme.default_port}"
    return Address(scheme.protocol, scheme.tls, parts.hostname or host, place)


def _port(parts: SplitResult) -> int | None:
    try:
        return parts.port
    except ValueError as error:
        raise ConfigError(f"url {parts.geturl()!r}: {error}. Write http://host:port.") from None


def _check_unused(parts: SplitResult) -> None:
    """Raise ConfigError for a part of a url that no request would have.

    A password is not shown, nor a query, which may hold a key.
    """
    path, user = parts.path.strip("/"), parts.username
    unused = {
        "user": user and f" {user!r}",
        "path": path and f" {path!r}",
        "query": parts.query and " after its question mark",
    }
    for name, value in unused.items():
        if value:
            raise ConfigError(
                f"the url of {parts.hostname} has the {name}{value}, which no request would have. "
                "Write http://host:port."
            )
