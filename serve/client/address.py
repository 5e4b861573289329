"""Addresses of endpoints, and PROTOCOLS by their scheme."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from bertender.core.errors import ConfigError, UnknownNameError
from serve.client.grpc import GRPC
from serve.client.http import HTTP
from serve.client.protocol import Protocol

__all__ = ["DEFAULT_URL", "PROTOCOLS", "parse_url"]

DEFAULT_URL = "http://127.0.0.1:8000"

PROTOCOLS: Mapping[str, Protocol] = {each.name: each for each in (HTTP, GRPC)}


def parse_url(url: str) -> tuple[Protocol, str]:
    """Return the protocol of a url, and its `host:port`.

    Raises:
        ConfigError: its scheme is not a row of PROTOCOLS, it has no host, or it has a user or a
            path.
    """
    parts = urlsplit(url if "://" in url else f"http://{url}")
    if parts.scheme == "https":
        raise ConfigError(
            f"url {url!r}: this client speaks neither TLS nor API keys yet. Give the address "
            "behind the proxy, http://host:port, or ask the proxy with another client."
        )
    if parts.scheme not in PROTOCOLS:
        raise UnknownNameError("protocol", parts.scheme, PROTOCOLS)
    protocol = PROTOCOLS[parts.scheme]
    try:
        host, port = parts.netloc, parts.port
    except ValueError as error:
        raise ConfigError(f"url {url!r}: {error}. Write http://host:port.") from None
    if not host:
        raise ConfigError(f"url {url!r} names no host. Write http://host:port.")
    _check_unused(parts)
    return protocol, host if port else f"{host}:{protocol.default_port}"


def _check_unused(parts: SplitResult) -> None:
    """Raise ConfigError for a part of a url that no request would have; a password is not shown."""
    unused = {"user": parts.username, "path": parts.path.strip("/"), "query": parts.query}
    for name, value in unused.items():
        if value:
            raise ConfigError(
                f"the url of {parts.hostname} has the {name} {value!r}, which no request would "
                "have. Write http://host:port."
            )
