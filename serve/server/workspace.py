"""Workspaces: private folders of running servers, found by other commands, and cleaned up.

Owner, server and the server's processes hold a lock on a file of the workspace, which the kernel
releases when the last of them ends. A workspace whose file can be locked was therefore left by a
killed server, even if its process id is in use again.

Each server writes a note with its addresses and repository to its workspace. Only its user can read
the workspace, which is removed with the server. Triton's Python backend also writes to /tmp,
regardless of TMPDIR.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Self
from uuid import uuid4

import psutil
from pydantic import Field, ValidationError

from bertender.core.config import Record
from bertender.core.errors import ServingError
from bertender.core.files import replacing
from serve.config import STANDARD_OUTPUT, ServeConfig
from serve.server.addresses import in_url
from serve.server.supervisor import SHARED_MEMORY, remove_abandoned_environments, remove_traces

logger = logging.getLogger(__name__)

WORKSPACE_PREFIX = "bertender-serve-"
REPOSITORY = "models"
"""Name of the model repository in a workspace, or of a link to it."""
CONTROL_SOCKET = "control"
"""Name of Triton's socket in a workspace."""
NOTE_NAME = "server.json"
LOCK_NAME = "lock"
"""File with the prefix of the workspace's shared memory."""
SHARED_MEMORY_NAME = re.compile(rf"{WORKSPACE_PREFIX}[0-9a-f-]{{36}}")

TEMPORARY = Path("/tmp")  # noqa: S108 - Triton's own choice, nothing is made here
ROOM_BYTES = 2**20
"""Least free space of a workspace, for the server's log and notes."""


class Workspace:
    """A context manager: the folder exists inside the block.

    Args:
        path: path of the folder; by default a new temporary folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.shared_memory = f"{WORKSPACE_PREFIX}{uuid4()}"
        """Prefix of the server's shared memory regions."""
        self.path = path or Path(tempfile.gettempdir(), self.shared_memory)
        self.lock: int | None = None
        """File descriptor of the lock, for processes that use the folder."""

    def __enter__(self) -> Self:
        self.create()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def create(self) -> None:
        """Create the folder, after removing remains of killed servers."""
        if self.lock is not None:
            return
        sweep()
        self.path.mkdir(mode=0o700, exist_ok=True)
        with suppress(OSError):  # on a full disk, or one without locks, it is never cleaned up
            draft = self.path / f".{LOCK_NAME}"
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.write(descriptor, self.shared_memory.encode())
                draft.rename(self.path / LOCK_NAME)  # named only once it is locked
            except BaseException:
                os.close(descriptor)
                draft.unlink(missing_ok=True)
                raise
            self.lock = descriptor

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)
        self.lock = None


def sweep() -> None:
    """Remove the remains of this user's servers that were killed with their supervisor: temporary
    workspaces, their shared memory, and Triton's folders in /tmp."""
    for lock in Path(tempfile.gettempdir()).glob(f"{WORKSPACE_PREFIX}*/{LOCK_NAME}"):
        with suppress(OSError):  # another user's, in use, or just removed
            _sweep(lock)
    remove_abandoned_environments()


def _sweep(lock: Path) -> None:
    # owners of links themselves: another user's link may point to a file of this user
    if {each.lstat().st_uid for each in (lock, lock.parent)} != {os.geteuid()}:
        return
    if not stat.S_ISDIR(lock.parent.lstat().st_mode):
        return
    descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        name = os.read(descriptor, 100).decode(errors="replace")
        if not SHARED_MEMORY_NAME.fullmatch(name):  # not a workspace, despite its name
            return
        remove_traces(name, lock.parent)
        shutil.rmtree(lock.parent, ignore_errors=True)
        logger.info("removed what a server that was killed had left: %s", lock.parent)
    finally:
        os.close(descriptor)


def check_temporary_folder(folder: Path = TEMPORARY) -> None:
    """Check that Triton can write to /tmp, which a read-only root file system forbids.

    Raises:
        ServingError: the folder cannot be written.
    """
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ServingError(
            f"{folder} cannot be written, and Triton's Python backend needs a folder there, "
            "regardless of TMPDIR. Mount a volume there (docker run --tmpfs /tmp)."
        )


def check_room(folder: Path) -> None:
    """Check that a workspace has room for the server's log and notes.

    Raises:
        ServingError: there is too little room.
    """
    disk = shutil.disk_usage(folder)
    if disk.total and disk.free < ROOM_BYTES:  # a file system without limit has a total of 0
        raise ServingError(
            f"{folder} has room for {disk.free / 2**10:.0f} KiB, and the server's log and notes "
            f"take {ROOM_BYTES / 2**10:.0f} KiB. Make room, or choose another directory with "
            "TMPDIR."
        )


REGION_BYTES = 2 * 1024 * 1024
"""Shared memory of each stub before the first request, with a margin for responses."""


def needed_bytes(config: ServeConfig, inputs: Sequence[int] = (1,)) -> int:
    """Return the shared memory that a server needs at the limits of its requests.

    Each stub may have a full queue, a running batch, and a batch of bodies before the queue.

    Args:
        config: settings of the server.
        inputs: texts per example, for each model.
    """
    texts = max(config.queue_texts, config.max_batch_size) + 2 * config.max_batch_size
    of_models = (REGION_BYTES + texts * columns * config.max_text_bytes for columns in inputs)
    return config.instances * sum(of_models)


def check_shared_memory(config: ServeConfig, inputs: Sequence[int] = (1,)) -> None:
    """Check that there is enough shared memory for the server's limits; see `needed_bytes`.

    Raises:
        ServingError: there is too little shared memory, or none.
    """
    try:
        free = shutil.disk_usage(SHARED_MEMORY).free
    except OSError as error:
        raise ServingError(f"no shared memory at {SHARED_MEMORY}: {error.strerror}.") from None
    needed = needed_bytes(config, inputs)
    if free < needed:
        raise ServingError(
            f"{SHARED_MEMORY} has {free / 2**20:.1f} MiB free, and the server needs "
            f"{needed / 2**20:.1f} MiB. Make it larger (docker run --shm-size, or a volume in "
            "memory there), or lower --max-text-bytes, --max-queue-texts, --max-batch-size or "
            "--instances of `bertender serve`."
        )


class RunningServer(Record):
    """The note of a running server."""

    door: int = Field(description="process that listens")
    since: float = Field(description="when that was started, in seconds since the boot")
    has_tls: bool = False
    is_embedded: bool = False
    host: str = Field(description="address at which this machine reaches it")
    http_port: int
    grpc_port: int | None = Field(description="None where it does not listen for gRPC")
    repository: Path

    @property
    def url(self) -> str:
        return f"http{'s' if self.has_tls else ''}://{in_url(self.host)}:{self.http_port}"


def start_of(process: int) -> float:
    """Return when a process started, in seconds since the boot, which no change of the clock moves.

    Raises:
        psutil.Error: there is no such process.
    """
    started: float = psutil.Process(process).create_time() - psutil.boot_time()
    return round(started, 2)


def note_server(server: RunningServer, workspace: Path) -> None:
    """Write the note of a server into its workspace."""
    note = workspace / NOTE_NAME
    with replacing(note) as draft:
        draft.touch(mode=0o600)
        draft.write_text(server.model_dump_json() + "\n", encoding="utf-8")


def running_servers() -> Iterator[RunningServer]:
    """Yield the running servers of this user with the same folder for temporary files."""
    folder = Path(tempfile.gettempdir())
    for note in sorted(folder.glob(f"{WORKSPACE_PREFIX}*/{NOTE_NAME}")):
        try:
            # the owner of a link itself: another user's link may point to a file of this user
            if {each.lstat().st_uid for each in (note, note.parent)} != {os.getuid()}:
                continue
            server = RunningServer.model_validate_json(note.read_text(encoding="utf-8"))
            since = start_of(server.door)
        except (OSError, ValidationError, psutil.Error):  # another user's, or just ended
            continue
        if since == server.since:  # process ids are reused
            yield server


def is_listening(server: RunningServer) -> bool:
    """Return whether the server itself listens at its ports.

    While it does, the kernel lets no other user listen there. Once it has ended, anyone may.
    """
    wanted = {server.http_port, server.grpc_port} - {None}
    with suppress(psutil.Error):  # it has ended
        process = psutil.Process(server.door)
        if start_of(server.door) != server.since or process.uids().effective != os.geteuid():
            return False
        sockets = process.net_connections("tcp")
        listening = [each.laddr for each in sockets if each.status == psutil.CONN_LISTEN]
        return {port for address, port in listening if _reaches(address, server.host)} >= wanted
    return False


def _reaches(listening: str, host: str) -> bool:
    """Return whether a socket that listens at an address is reached at a host."""
    address = ip_address(listening)
    if isinstance(address, IPv6Address):  # gRPC listens for both IPv4 and IPv6
        address = address.ipv4_mapped or address
    return address.is_unspecified or address == ip_address(host)


def log_file_of(config: ServeConfig, workspace: Workspace) -> Path:
    """Return the path of a server's log."""
    if config.log_file == STANDARD_OUTPUT:
        return STANDARD_OUTPUT
    return (config.log_file or workspace.path / "server.log").resolve()
