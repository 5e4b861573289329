"""Access to an endpoint: its address, TLS certificates, and API key."""

from __future__ import annotations

import ipaddress
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from pydantic import Field

from bertender.core.config import Config, Rule
from bertender.core.errors import ConfigError, UnknownNameError

DEFAULT_URL = "http://127.0.0.1:8000"
KEY = re.compile(r"[\x21-\x7e]{1,4096}")
TLS_SETTINGS = ("ca_file", "client_certificate", "client_key")


class Scheme(NamedTuple):
    """Protocol, TLS and default port of a URL scheme."""

    protocol: str
    """A name in PROTOCOLS."""
    tls: bool
    default_port: int


URL_SCHEMES: Mapping[str, Scheme] = {
    "http": Scheme("http", False, 8000),
    "grpc": Scheme("grpc", False, 8001),
    "https": Scheme("http", True, 443),
    "grpcs": Scheme("grpc", True, 443),
}
"""Schemes by their prefix in a url."""


@dataclass(frozen=True)
class Address:
    """Address of an endpoint: host, port and protocol."""

    protocol: str
    """A name in PROTOCOLS."""
    tls: bool
    host: str
    host_and_port: str


def parse_url(url: str) -> Address:
    """Return the address of a url; without a scheme it is http.

    Raises:
        ConfigError: the scheme is not in URL_SCHEMES, or the url has no host, or has a user or a
            path. The message never has a password or a query, which may have a key.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
    except ValueError as error:  # of brackets
        raise ConfigError(f"url {url!r}: {error}. Write http://host:port.") from None
    if parts.scheme not in URL_SCHEMES:
        raise UnknownNameError("protocol", parts.scheme, URL_SCHEMES)
    if not (host := parts.netloc):
        raise ConfigError(f"url {url!r} names no host. Write http://host:port.")
    path = parts.path.strip("/")
    unused = {
        "user": parts.username and f" {parts.username!r}",
        "path": path and f" {path!r}",
        "query": parts.query and " after its question mark",
    }
    for name, value in unused.items():  # checked first, so that no other error shows a password
        if value:
            raise ConfigError(
                f"the url of {parts.hostname} has the {name}{value}, which no request would have. "
                "Write http://host:port."
            )
    try:
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"url {parts.geturl()!r}: {error}. Write http://host:port.") from None
    scheme = URL_SCHEMES[parts.scheme]
    host_and_port = host if port else f"{host}:{scheme.default_port}"
    return Address(scheme.protocol, scheme.tls, parts.hostname or host, host_and_port)


ACCESS_RULES: Mapping[str, Rule[Any]] = {
    "client key without a certificate": Rule(
        lambda config: config.client_certificate is None,
        "it is the key of --client-certificate FILE. Give it as well, or leave this out.",
        settings=frozenset({"client_key"}),
    ),
}
"""Conflicts of settings."""


class AccessConfig(Config):
    """Files for TLS and authentication of a client."""

    panel: ClassVar[str] = "Access"
    rules: ClassVar[Mapping[str, Rule[Any]]] = ACCESS_RULES

    ca_file: Path | None = Field(
        None,
        description="PEM file of the authority that signed the server's certificate, for https:// "
        "and grpcs://; by default those that this machine trusts",
    )
    client_certificate: Path | None = Field(
        None, description="PEM file of the certificate that tells the server who asks"
    )
    client_key: Path | None = Field(
        None, description="PEM file of its private key; by default it is in the same file"
    )
    api_key_file: Path | None = Field(
        None,
        description="send the key in this file with every request, as Authorization: Bearer KEY",
    )


NO_ACCESS = AccessConfig()
"""Access without settings, for a server that trusts all its clients."""


@dataclass(frozen=True)
class Access:
    """TLS settings and API key, read from files; `repr` shows no secret."""

    config: AccessConfig
    context: ssl.SSLContext | None
    """None for a connection without TLS."""
    headers: Mapping[str, str] = field(repr=False)
    """Of every request."""

    @property
    def trusted_file(self) -> Path | None:
        """File of trusted authorities: the set one, or this machine's.

        None where OpenSSL has no such file; grpcio then uses its own list.
        """
        of_machine = ssl.get_default_verify_paths().cafile
        return self.config.ca_file or (Path(of_machine) if of_machine else None)

    @property
    def certificate_files(self) -> tuple[Path, Path] | None:
        """The client's certificate and its key."""
        if (certificate := self.config.client_certificate) is None:
            return None
        return certificate, self.config.client_key or certificate


def open_access(address: Address, config: AccessConfig) -> Access:
    """Read and check the files for a connection to an address.

    Raises:
        ConfigError: a file cannot be used, or does not fit the address.
    """
    if not address.tls:
        _check_plain(address, config)
    context = _context(config) if address.tls else None
    headers = {} if config.api_key_file is None else _bearer(config.api_key_file)
    return Access(config, context, headers)


def _check_plain(address: Address, config: AccessConfig) -> None:
    """Raise ConfigError for TLS settings without TLS, or for a key sent in plain text."""
    name = address.protocol
    if unused := [each for each in TLS_SETTINGS if getattr(config, each)]:
        raise ConfigError(
            f"{config.as_set(unused)}: {name}:// has no TLS. Write {name}s://, or leave it out."
        )
    try:
        is_loopback = ipaddress.ip_address(address.host).is_loopback
    except ValueError:
        is_loopback = address.host == "localhost"
    if config.api_key_file and not is_loopback:
        raise ConfigError(
            f"api_key_file={config.api_key_file}: {name}:// would send the key to {address.host} "
            f"without encryption. Write {name}s://, or use a proxy on this machine."
        )


def _context(config: AccessConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=config.ca_file)
    except OSError as error:
        raise _unusable(config, "ca_file", "certificate", error) from None
    if certificate := config.client_certificate:
        try:  # without a password, OpenSSL would prompt for an encrypted key
            context.load_cert_chain(certificate, config.client_key, password="")
        except OSError as error:
            name = "client_key" if config.client_key else "client_certificate"
            raise _unusable(config, name, "certificate with its unencrypted key", error) from None
    return context


def _unusable(config: AccessConfig, name: str, content: str, error: OSError) -> ConfigError:
    return ConfigError(
        f"{config.as_set([name])}: {error.strerror or error}. Name a PEM file that this user can "
        f"read and that holds a {content}."
    )


def _bearer(file: Path) -> dict[str, str]:
    """Return the Authorization header of a key; errors do not show the key."""
    try:
        key = file.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ConfigError(f"api_key_file={file}: {error.strerror}.") from None
    except UnicodeDecodeError:
        key = ""
    if not KEY.fullmatch(key):
        raise ConfigError(
            f"api_key_file={file}: no key in it. It holds the key alone, without the word Bearer: "
            "one line of ASCII without white space."
        )
    return {"authorization": f"Bearer {key}"}
