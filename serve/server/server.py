"""Starting and stopping a server on this machine: a door (the HTTP and gRPC front) and its engine.

`serve_forever` runs the door in this process. `Server` runs it in another process, which always
ends with this one, since it reads a pipe from here; `Start` is the file of its settings. `Watch`
notices overwritten files of the repository. Servers listen on the loopback address by default.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from logging.handlers import WatchedFileHandler
from pathlib import Path
from types import FrameType
from typing import IO, Any, NoReturn, Self

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME
from bertender.core.config import Record
from bertender.core.errors import (
    ArtifactError,
    BertenderError,
    ConfigError,
    DamagedArtifactError,
    ModelError,
    PortTakenError,
    RuntimeMissingError,
    ServerMissingError,
    ServingError,
)
from serve.config import STANDARD_OUTPUT, ServeConfig
from serve.repository import Models, by_name, model_names, write_repository
from serve.server.addresses import in_url, reachable, with_free_ports
from serve.server.installation import QUIET_AND_LIGHT
from serve.server.supervisor import HURRYING
from serve.server.triton_process import (
    IN_FLIGHT_TIMEOUT_S,
    STOP_TIMEOUT_S,
    Triton,
    begin_log,
    failure_reason,
)
from serve.server.workspace import (
    REPOSITORY,
    RunningServer,
    Workspace,
    check_room,
    log_file_of,
    note_server,
    start_of,
)
from serve.wire import ENCODER_NAME, MODEL_NAME

logger = logging.getLogger(__name__)

LOOK_S = 1.0
END_TIMEOUT_S = IN_FLIGHT_TIMEOUT_S + STOP_TIMEOUT_S + 10

DOOR = "serve.door"
"""Module of the door process."""

RAISED: Mapping[str, type[BertenderError]] = {
    each.__name__: each
    for each in (
        PortTakenError,
        ServerMissingError,
        ServingError,
        RuntimeMissingError,
        ModelError,
        ArtifactError,
        ConfigError,
        BertenderError,
    )
}
"""Errors that a door reports by name; others are reported as their nearest base class here."""


class Start(Record):
    """Settings of a door process: a file in its workspace."""

    settings: dict[str, Any] = Field(description="explicit settings of a ServeConfig")
    repository: Path
    workspace: Path
    shared_memory: str
    lock: int | None = Field(description="file descriptor that holds the workspace")
    reports: int = Field(description="file descriptor that the door writes to, a line of JSON each")

    def write(self) -> Path:
        """Write the file, readable only by this user, and return its path."""
        file = self.workspace / "door.json"
        file.touch(mode=0o600)
        file.write_text(self.model_dump_json() + "\n", encoding="utf-8")
        return file

    @property
    def config(self) -> ServeConfig:
        return ServeConfig.parse(self.settings)

    def opened(self) -> Workspace:
        """Return the workspace, which the owner has created."""
        workspace = Workspace(self.workspace)
        workspace.shared_memory, workspace.lock = self.shared_memory, self.lock
        return workspace


def report_of(error: BertenderError) -> dict[str, str]:
    """Return a door's report of an error."""
    names = (each.__name__ for each in type(error).__mro__)
    return {"error": next(name for name in names if name in RAISED), "reason": str(error)}


class Server:
    """A context manager: the server is ready inside the block, and stopped after it.

    Args:
        repository: a repository of `write_repository`.
        config: ports and timeouts; a port 0 is replaced by a free one.
        workspace: folder of the server's files while it runs, removed at the end.

    Raises (on entering):
        ServerMissingError: there is no Triton binary.
        PortTakenError: another process listens on one of the ports.
        ConfigError: the log cannot be written.
        ServingError: the server ended, or was not ready in time; the message has the reason.
    """

    def __init__(
        self, repository: Path, config: ServeConfig, workspace: Workspace | None = None
    ) -> None:
        self.repository = repository.resolve()
        self.models = model_names(self.repository) or (MODEL_NAME,)  # reports a missing server
        self.config = config
        self.workspace = workspace or Workspace()
        self.door: subprocess.Popen[bytes] | None = None
        self.log_start = 0
        self._reports: IO[str] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        return f"http{self._tls}://{in_url(self._reachable_host)}:{self.config.http_port}"

    @property
    def grpc_url(self) -> str:
        """URL for gRPC; raises ConfigError where the server has no gRPC port."""
        if self.config.grpc_port is None:
            raise ConfigError(
                "grpc_port=None: the server has no gRPC. Start it with a port for it."
            )
        return f"grpc{self._tls}://{in_url(self._reachable_host)}:{self.config.grpc_port}"

    @property
    def metrics_url(self) -> str:
        host = reachable(self.config.metrics_host or self.config.host)
        return f"http{self._tls}://{in_url(host)}:{self.config.metrics_port}/metrics"

    @property
    def log_file(self) -> Path:
        return log_file_of(self.config, self.workspace)

    @property
    def _tls(self) -> str:
        return "s" if self.config.tls_certificate else ""

    @property
    def _reachable_host(self) -> str:
        """Host for the URLs of a started server; before the start, it may be a name."""
        return reachable(self.config.host)

    def wait(self, look: Callable[[], None] = lambda: None) -> NoReturn:
        """Block while the server runs; raise ServingError when it ends by itself.

        Args:
            look: called every LOOK_S seconds.
        """
        assert self.door is not None
        while True:
            try:
                status = self.door.wait(LOOK_S)
                break
            except subprocess.TimeoutExpired:
                look()
        error: Exception = self._end_of(status)
        try:
            if self._reports is not None and (line := self._reports.readline()):
                self._read_report(line)
        except BertenderError as reported:
            error = reported
        raise ServingError(f"{error}{self.saved_log()}")

    def saved_log(self) -> str:
        """Return a sentence with the path of an ended server's log."""
        if self.config.log_file is not None:
            return ""
        # the log is removed with the workspace
        place = Path(tempfile.gettempdir(), f"{self.workspace.shared_memory}.log")
        try:
            shutil.copyfile(self.log_file, place)
        except OSError as error:  # the server's error matters more than the log
            return f" The log could not be saved in {place}: {error.strerror}."
        return f" The log is in {place}."

    def stop(self) -> None:
        """Stop the server after the requests in flight, and remove its workspace."""
        if self.door is not None:
            assert self.door.stdin is not None
            with suppress(BrokenPipeError):
                self.door.stdin.close()
            try:
                self.door.wait(END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.door.kill()  # its child processes then end too
                self.door.wait()
        if self._reports is not None:
            self._reports.close()
        self.workspace.remove()

    def hurry(self) -> None:
        """Stop the server without waiting for requests in flight, also while `stop` waits."""
        if self.door is not None and self.door.poll() is None:
            self.door.send_signal(HURRYING)

    def note(self, config: ServeConfig) -> None:
        """Set the config with the actual ports, and write the note by which `bertender deploy`
        finds the server."""
        self.config = config
        running = RunningServer(
            door=os.getpid(),
            since=start_of(os.getpid()),
            has_tls=bool(config.tls_certificate),
            is_embedded=config.is_embedded,
            host=self._reachable_host,
            http_port=config.http_port,
            grpc_port=config.grpc_port,
            repository=self.repository,
        )
        note_server(running, self.workspace.path)

    def _start(self) -> None:
        """Start the door process, and wait until it is ready."""
        with_free_ports(self.config)  # taken ports are reported before anything starts
        log_file = self.log_file
        self.log_start = begin_log(log_file)
        self.workspace.create()  # also frees the shared memory of killed servers
        if not self.config.is_embedded and self.config.triton is None:
            Triton(self.repository, self.config, self.workspace).check()
        check_room(self.workspace.path)
        read, write = os.pipe()
        self._reports = os.fdopen(read, encoding="utf-8")
        locks = [] if self.workspace.lock is None else [self.workspace.lock]
        start = Start(
            settings=self.config.model_dump(
                mode="json", include={*ServeConfig.model_fields}, exclude_unset=True
            ),
            repository=self.repository,
            workspace=self.workspace.path,
            shared_memory=self.workspace.shared_memory,
            lock=self.workspace.lock,
            reports=write,
        )
        try:
            with _output(log_file) as output:
                self.door = subprocess.Popen(
                    # without the current folder, whose modules could shadow ours
                    [sys.executable, "-P", "-m", DOOR, str(start.write())],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[*locks, write],
                    env={
                        **os.environ,
                        **QUIET_AND_LIGHT,
                        "PYTHONPATH": os.pathsep.join(each for each in sys.path if each),
                    },
                    start_new_session=True,  # only this process handles Ctrl-C, and stops the door
                )
        finally:
            os.close(write)
        if not (line := self._reports.readline()):
            raise self._end_of(self.door.wait())
        self._read_report(line)

    def _end_of(self, status: int) -> ServingError:
        """Return the error for a door that ended without a report."""
        reason = failure_reason(self.log_file, self.log_start).rstrip(".")
        return ServingError(f"the server ended, status {status}: {reason}.")

    def _read_report(self, line: str) -> None:
        """Read the door's report: set its ports, or raise its error."""
        report = json.loads(line)
        if "error" in report:
            raise RAISED[report["error"]](report["reason"])
        self.config = self.config.model_copy(update=report)


@contextmanager
def _output(log_file: Path) -> Iterator[IO[bytes] | None]:
    """Yield the log file of a process; None for this process's standard output."""
    if log_file == STANDARD_OUTPUT:
        yield None
        return
    with log_file.open("ab", buffering=0) as output:
        yield output


@contextmanager
def serving(models: Models, config: ServeConfig) -> Iterator[Server]:
    """Serve ONNX artifacts inside the block; their model repository is temporary.

    Raises:
        ModelError: an artifact is not an ONNX classifier.
        ServingError: the server cannot start.
    """
    with prepared(models, config) as server, server:
        yield server


@contextmanager
def prepared(models: Models, config: ServeConfig) -> Iterator[Server]:
    """Yield a server with a temporary model repository, not started yet."""
    # the repository is removed with the server, even if this process is killed
    with Workspace() as workspace:
        # with restarts, copies, so that a restart loads the same files; otherwise links, which take
        # no time, and changes of the artifact are reported
        once = not (config.restart and "restart" in config.model_fields_set)
        repository = write_repository(
            models, workspace.path / REPOSITORY, config, is_temporary=once
        )
        yield Server(repository, config, workspace)


OVERWRITTEN = (
    "files of %s were overwritten while they are served: %s The server continues with its loaded "
    "model, but could not be restarted with these files. Write new models to their own folders, "
    "and switch with `bertender deploy`."
)
UNREADABLE = (
    "files of %s cannot be read while they are served: %s. The server continues with its loaded "
    "model, but could not be restarted now."
)


def serve_forever(
    models: Models,
    config: ServeConfig,
    on_ready: Callable[[Server], None] = lambda server: None,
) -> None:
    """Serve ONNX artifacts in the foreground; return after SIGINT or SIGTERM and a clean stop.

    Call it from the main thread. Errors as in `serving`.

    Raises:
        ServingError: the server ended by itself.
    """
    from serve.door.process import run  # loads the libraries of the door

    try:
        with _interrupted_by_signals(), prepared(models, config) as server:
            with_free_ports(config)
            begin_log(server.log_file)
            check_room(server.workspace.path)
            watch = Watch(server.repository)
            with _logged(server.log_file):
                run(_serve_here(server, on_ready, lambda: report_overwritten(watch, models)))
    except KeyboardInterrupt:
        pass
    logger.info("stopped on request")


@contextmanager
def _logged(file: Path) -> Iterator[None]:
    """Append the door's log messages of this process to the engine's log file, also where that was
    moved."""
    if file == STANDARD_OUTPUT:
        yield
        return
    messages, own = logging.getLogger("serve"), WatchedFileHandler(file)
    handlers: list[logging.Handler] = [own]
    if logging.lastResort and not messages.hasHandlers():
        handlers.append(logging.lastResort)  # other handlers, such as this file's, replace it
    for each in handlers:
        messages.addHandler(each)
    try:
        yield
    finally:
        for each in handlers:
            messages.removeHandler(each)
        own.close()


async def _serve_here(
    server: Server, on_ready: Callable[[Server], None], look: Callable[[], None]
) -> None:
    """Run the door in this process.

    Args:
        server: server with its workspace and repository.
        on_ready: called in a thread when the server is ready.
        look: called every LOOK_S seconds, in a thread.
    """
    from serve.door.process import process_of  # loads the libraries of the door

    def ready(config: ServeConfig) -> None:
        server.note(config)
        on_ready(server)

    async def keep_looking() -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                await asyncio.to_thread(look)
            except Exception:  # an error must not end the checks silently
                logger.exception("the served files could not be checked")

    process = process_of(server.repository, server.config, server.workspace)
    looking = asyncio.create_task(keep_looking())
    try:
        await process.run(ready)
    except ServingError as error:
        if process.was_ready:
            raise ServingError(f"{error}{server.saved_log()}") from None
        raise
    finally:
        looking.cancel()


def report_overwritten(watch: Watch, models: Models) -> None:
    """Warn of overwritten served files at once, instead of at the next start.

    Args:
        watch: watch of the server's repository.
        models: served models.
    """
    sources = by_name(models)
    for folder, wrong in watch.overwritten().items():
        name = folder.relative_to(watch.repository).parts[0]
        source = sources[MODEL_NAME if name == ENCODER_NAME else name].path
        logger.warning(UNREADABLE if isinstance(wrong, OSError) else OVERWRITTEN, source, wrong)


class Watch:
    """Notices files of a repository that were overwritten since it was written."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        cards = [*repository.glob(f"*/*/{CARD_NAME}"), *repository.glob(f"*/*/*/{CARD_NAME}")]
        self.artifacts = [Artifact.load(card.parent, verify=False) for card in cards]
        self.seen = [each.stamp for each in self.artifacts]
        """Stamp of each artifact's files, or the error that prevented reading them."""

    def overwritten(self) -> dict[Path, DamagedArtifactError | OSError]:
        """Return the faults since the last call, by folder of an artifact.

        Only touched files are read. Files of a version that `deploy` has removed are ignored.
        Unreadable files, for instance on unavailable storage, are reported once as OSError, and
        read again at the next call.
        """
        found: dict[Path, DamagedArtifactError | OSError] = {}
        for number, artifact in enumerate(self.artifacts):
            before = self.seen[number]
            wrong: DamagedArtifactError | OSError | None = None
            try:
                self.seen[number] = artifact.stamp
                if self.seen[number] == before:
                    continue
                if all((artifact.path / name).is_file() for name in artifact.card.files):
                    artifact.check_files()
            except DamagedArtifactError as error:
                wrong = error
            except OSError as error:
                wrong, self.seen[number] = error, str(error)
            if wrong and self.seen[number] != before:
                found[artifact.path] = wrong
        return found


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM interrupt the block like SIGINT (Ctrl-C)."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, _interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
