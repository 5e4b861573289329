"""The running servers of this user: each notes in its workspace where it listens and what it reads.

The workspace is the user's alone, and goes with the server.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import psutil
from pydantic import Field, ValidationError

from bertender.core.config import Record
from bertender.core.files import replacing
from serve.launch import CONTROL_SOCKET
from serve.server.addresses import in_url
from serve.server.workspace import WORKSPACE_PREFIX

NOTE_NAME = "server.json"


class RunningServer(Record):
    """A server that runs, as it notes."""

    supervisor: int = Field(description="process that started it")
    host: str = Field(description="address at which this machine reaches it")
    http_port: int
    grpc_port: int | None = Field(description="None where it does not listen for gRPC")
    repository: Path

    @property
    def url(self) -> str:
        return f"http://{in_url(self.host)}:{self.http_port}"

    @property
    def control(self) -> str:
        """Address of gRPC for its administration: its port, or the socket in its workspace.

        The workspace is the folder that the supervisor runs in. Its own path may be longer than
        the address of a socket can be.
        """
        if self.grpc_port is not None:
            return f"{in_url(self.host)}:{self.grpc_port}"
        return f"unix:/proc/{self.supervisor}/cwd/{CONTROL_SOCKET}"


def note_server(server: RunningServer, workspace: Path) -> None:
    """Write the note of a server into its workspace."""
    note = workspace / NOTE_NAME
    with replacing(note) as draft:
        draft.touch(mode=0o600)
        draft.write_text(server.model_dump_json() + "\n", encoding="utf-8")


def running_servers() -> Iterator[RunningServer]:
    """Yield the running servers of this user that share its folder for temporary files."""
    folder = Path(tempfile.gettempdir())
    for note in sorted(folder.glob(f"{WORKSPACE_PREFIX}*/{NOTE_NAME}")):
        try:
            # of links themselves: one of another user may lead to a file of this one
            if {each.lstat().st_uid for each in (note, note.parent)} != {os.getuid()}:
                continue
            server = RunningServer.model_validate_json(note.read_text(encoding="utf-8"))
        except (OSError, ValidationError):  # another user's, or it has just ended
            continue
        if _is_running(server, note.parent):
            yield server


def is_listening(server: RunningServer) -> bool:
    """Return whether the server itself listens at its ports.

    That is a process of this user which its supervisor has started. While it does, the kernel lets
    no other user listen there. While it is started again, anybody may.
    """
    try:
        started = psutil.Process(server.supervisor).children()
    except psutil.Error:
        return False
    return any(_listens(each, server) for each in started)


def _listens(process: psutil.Process, server: RunningServer) -> bool:
    try:
        is_own = process.uids().effective == os.geteuid()
        sockets = process.net_connections("tcp")
    except psutil.Error:  # it has ended, or is another user's
        return False
    listening = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
    own = {port for address, port in listening if _reaches(address, server.host)}
    return is_own and own >= {server.http_port, server.grpc_port} - {None}


def _reaches(listening: str, host: str) -> bool:
    """Return whether a socket at an address is what a client of the host's address meets."""
    address = ip_address(listening)
    if isinstance(address, IPv6Address):  # gRPC's are of both kinds
        address = address.ipv4_mapped or address
    return address.is_unspecified or address == ip_address(host)


def _is_running(server: RunningServer, workspace: Path) -> bool:
    """Return whether the process is there and is that of the workspace: numbers are used again."""
    try:
        command = Path(f"/proc/{server.supervisor}/cmdline").read_bytes()
    except OSError:
        return False
    return os.fsencode(workspace.name) in command
