"""A Triton server whose processes are looked at: their memory and their processor time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import psutil

from benchmarks.serving.clients import Open, TritonClient
from benchmarks.serving.systems import Service
from serve.server.server import TritonServer
from serve.server.supervisor import STUB_NAME

__all__ = ["ROLES", "STUB", "SERVER", "SUPERVISOR", "WatchedServer", "memory_of", "role_of"]

STUB, SERVER, SUPERVISOR = "stub", "server", "supervisor"
ROLES = {STUB_NAME: STUB, "tritonserver": SERVER}
"""Name of a process -> what it is; another is the supervisor."""


class WatchedServer:
    """Starts a server, and reads what its processes use.

    Args:
        serve: opens the server of a service; it is ready inside the block.
    """

    def __init__(self, serve: Callable[[Service], AbstractContextManager[TritonServer]]) -> None:
        self.serve = serve
        self.server: TritonServer | None = None

    @contextmanager
    def start(self, service: Service) -> Iterator[Open]:
        """Start it, as a row of SYSTEMS does."""
        with self.serve(service) as self.server:
            url = self.server.grpc_url
            yield lambda: TritonClient(url)

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of the processes, by what they are."""
        assert self.server is not None
        return memory_of(self.server)

    def processor_s(self) -> dict[str, float]:
        """Return the processor time of the processes so far, by what they are."""
        seconds = dict.fromkeys((*ROLES.values(), SUPERVISOR), 0.0)
        assert self.server is not None
        for process in _processes(self.server):
            times = process.cpu_times()
            seconds[role_of(process.name())] += times.user + times.system
        return seconds


def memory_of(server: TritonServer) -> dict[str, int]:
    """Return the resident bytes of a server's processes, by what they are."""
    sizes = dict.fromkeys((*ROLES.values(), SUPERVISOR), 0)
    for process in _processes(server):
        sizes[role_of(process.name())] += process.memory_info().rss
    return sizes


def _processes(server: TritonServer) -> list[psutil.Process]:
    assert server.supervisor is not None
    supervisor = psutil.Process(server.supervisor.pid)
    return [supervisor, *supervisor.children(recursive=True)]


def role_of(name: str) -> str:
    """Return what a process is; the kernel cuts names to 15 bytes."""
    return next((role for start, role in ROLES.items() if start[:15] == name[:15]), SUPERVISOR)
