"""Replicas of `bertender serve`, and a real haproxy in front of them.

The proxy has the configuration of deploy/haproxy, changed in nothing but its ports and, for one
replica, without the lines of the other.
"""

from __future__ import annotations

import csv
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bertender.core.errors import ServerMissingError, ServingError
from serve.config import PORT_FIELDS, ServeConfig
from serve.server.addresses import with_free_ports
from serve.server.triton_process import IN_FLIGHT_TIMEOUT_S, STOP_TIMEOUT_S
from serve.wire import MODEL_NAME
from tests.serve.processes import is_ready
from tests.serve.proxy_process import PROXY_TIMEOUT_S, proxy_process, wait_until

CONFIG = Path(__file__).resolve().parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
UPSTREAM = {"http_port": (8000, 8010), "grpc_port": (8001, 8011)}
"""Port of a server -> its numbers in that file, of each replica."""
FRONTENDS = {"http_port": 8080, "grpc_port": 8081}
"""Port of the proxy -> its number in that file."""
SERVERS = ("http_replicas/first", "http_replicas/second")
"""Names of the replicas in that file; those of gRPC follow them."""
SOCKET = Path("/run/haproxy/admin.sock")
"""Where that file has the proxy listen for its administrator."""
HOST = "127.0.0.1"
READY_TIMEOUT_S = 120.0


class Replica:
    """A `bertender serve` that may be stopped by SIGTERM and started again on the same ports."""

    def __init__(self, artifact: Path, log_file: Path) -> None:
        self.artifact = artifact
        self.log_file = log_file
        self.config = with_free_ports(ServeConfig(http_port=0, grpc_port=0, metrics_port=0))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready.

        Raises:
            ServingError: it ends, or is not ready in time.
        """
        ports = (
            f"--{field.replace('_', '-')}={getattr(self.config, field)}" for field in PORT_FIELDS
        )
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "bertender", "serve", str(self.artifact), *ports),
                *("--threads-per-instance", "1", "--log-file", str(self.log_file)),
                "--behind-proxy",
            ],
            stdout=subprocess.DEVNULL,
        )
        port = self.config.http_port
        wait_until(lambda: is_ready(HOST, port, (MODEL_NAME,)), self.process, READY_TIMEOUT_S)

    def stop(self) -> None:
        """Send SIGTERM, and wait until it has ended.

        Raises:
            ServingError: it ends with another status than 0, or does not end and is killed.
        """
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(IN_FLIGHT_TIMEOUT_S + STOP_TIMEOUT_S + 10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        if status:
            raise ServingError(f"a replica ended with status {status}; its log is {self.log_file}")


@contextmanager
def running_replicas(artifact: Path, folder: Path) -> Iterator[list[Replica]]:
    """Run two replicas; both are ready inside the block."""
    replicas = [Replica(artifact, folder / f"replica-{place}.log") for place in (0, 1)]
    with ExitStack() as stack:
        for replica in replicas:
            stack.callback(_end, replica)
            replica.start()
        yield replicas


def _end(replica: Replica) -> None:
    if replica.process is not None and replica.process.poll() is None:
        replica.stop()


@dataclass(frozen=True)
class Proxy:
    """A running haproxy."""

    http_port: int
    grpc_port: int
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def http_url(self) -> str:
        return f"http://{HOST}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://{HOST}:{self.grpc_port}"

    def drain(self, place: int) -> None:
        """Send a replica no more requests; those that it has go on."""
        self._change(f"set server {SERVERS[place]} state drain")

    def use(self, place: int) -> None:
        """Send a replica requests again, once its checks pass."""
        self._change(f"set server {SERVERS[place]} state ready")

    def uses(self, place: int) -> bool:
        """Return whether a replica gets requests: its checks pass, and it is not drained."""
        backend, _, server = SERVERS[place].partition("/")
        rows = csv.DictReader(self._command("show stat").lstrip("# ").splitlines())
        (status,) = (
            row["status"] for row in rows if (row["pxname"], row["svname"]) == (backend, server)
        )
        return status.startswith("UP")

    def _change(self, words: str) -> None:
        if reply := self._command(words).strip():  # it says nothing where all is well
            raise ServingError(f"haproxy, {words!r}: {reply}")

    def _command(self, words: str) -> str:
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(PROXY_TIMEOUT_S)
            admin.connect(str(self.folder / SOCKET.name))
            admin.sendall(f"{words}\n".encode())
            with admin.makefile(encoding="utf-8") as reply:
                return reply.read()


@contextmanager
def proxied(replicas: Sequence[Replica], folder: Path) -> Iterator[Proxy]:
    """Run haproxy with the configuration of deploy/ in front of replicas.

    Raises:
        ServerMissingError: haproxy is not installed.
        ServingError: it does not start.
    """
    binary = shutil.which("haproxy")
    if binary is None:
        raise ServerMissingError("haproxy is not installed: `apt install haproxy` on Debian")
    own = with_free_ports(ServeConfig(http_port=0, grpc_port=0, metrics_port=0))
    config = folder / "haproxy.cfg"
    text = _config(own, replicas).replace(str(SOCKET), str(folder / SOCKET.name))
    config.write_text(text, encoding="utf-8")
    command = [binary, "-f", config.name]
    with proxy_process(
        command, folder, lambda: is_ready(HOST, own.http_port, (MODEL_NAME,))
    ) as process:
        assert own.grpc_port is not None
        yield Proxy(own.http_port, own.grpc_port, folder, process)


def _config(own: ServeConfig, replicas: Sequence[Replica]) -> str:
    """Return the proxy's configuration with the ports of these replicas.

    Each port is a place of its own in the text before any is replaced: new ones may be old ones of
    another place.
    """
    ports = {old: getattr(own, field) for field, old in FRONTENDS.items()}
    for field, numbers in UPSTREAM.items():
        for number, replica in zip(numbers, replicas, strict=False):
            ports[number] = getattr(replica.config, field)
    lines = CONFIG.read_text(encoding="utf-8").splitlines(keepends=True)
    if len(replicas) == 1:
        lines = [line for line in lines if not line.startswith("    server second ")]
    return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: str(ports[int(port[0])]), "".join(lines))
