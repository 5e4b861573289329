"""The real Triton server on a model repository: started, watched, and stopped without a trace.

bertender -> supervisor -> tritonserver -> Python stub. The supervisor (see there) ends the others
when bertender ends in any way. Everything listens on the loopback address by default.
"""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import NoReturn, Self

from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME
from bertender.core.errors import (
    ConfigError,
    DamagedArtifactError,
    PortTakenError,
    ServingError,
)
from bertender.models.runtimes import check_installed
from serve.config import PORT_FIELDS, SERVED_RUNTIMES, STANDARD_OUTPUT, ServeConfig
from serve.repository.config_pbtxt import CONFIG_NAME, read_model_config
from serve.repository.write import Models, by_name, model_names, write_repository
from serve.server.addresses import free_ports, in_url, reachable
from serve.server.installation import Installation, find_installation
from serve.server.launch import (
    STOP_TIMEOUT_S,
    begin_log,
    check_closed,
    failure_reason,
    is_ready,
    launch,
)
from serve.server.supervisor import HURRYING
from serve.server.workspace import (
    REPOSITORY,
    RunningServer,
    Workspace,
    check_room,
    check_shared_memory,
    check_temporary_folder,
    note_server,
)
from serve.wire import ENCODER_NAME, MODEL_NAME

logger = logging.getLogger(__name__)

POLL_S = 0.05
LOOK_S = 1.0
PORT_TRIES = 3
"""Starts, with other free ports each, where another process takes one first."""
PORT_IN_USE = "already in use"
"""In Triton's words."""


class TritonServer:
    """A context manager: the server is ready inside the block, and stopped after it.

    Args:
        repository: what `write_repository` wrote.
        config: ports and timeouts; a port 0 is replaced by a free one.
        workspace: the folder for what the server needs while it runs; it is removed with it.

    Raises (on entering):
        ServerMissingError: there is no Triton binary.
        PortTakenError: another process listens on one of the ports.
        ConfigError: the log cannot be written.
        ServingError: the server ended, or was not ready in time; the reason is in the message.
    """

    def __init__(
        self, repository: Path, config: ServeConfig, workspace: Workspace | None = None
    ) -> None:
        self.repository = repository.resolve()
        self.models = model_names(self.repository) or (MODEL_NAME,)  # whose absence is reported
        self.config = config
        self.workspace = workspace or Workspace()
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.log_start = 0

    def __enter__(self) -> Self:
        try:
            self._start()
            check_closed(self._reachable_host, self.config.http_port)
            assert self.supervisor is not None and self.supervisor.stdin is not None
            with suppress(BrokenPipeError):  # it has ended; `wait` reports why
                # what fails before is not started again
                self.supervisor.stdin.write(b"ready\n")
                self.supervisor.stdin.flush()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        return f"http://{in_url(self._reachable_host)}:{self.config.http_port}"

    @property
    def grpc_url(self) -> str:
        """Address for gRPC; ConfigError where the server does not listen for it."""
        if self.config.grpc_port is None:
            raise ConfigError(
                "grpc_port=None: the server has no gRPC. Start it with a port for it."
            )
        return f"grpc://{in_url(self._reachable_host)}:{self.config.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{in_url(self._reachable_host)}:{self.config.metrics_port}/metrics"

    @property
    def log_file(self) -> Path:
        if self.config.log_file == STANDARD_OUTPUT:
            return STANDARD_OUTPUT
        return (self.config.log_file or self.workspace.path / "tritonserver.log").resolve()

    @property
    def _reachable_host(self) -> str:
        """Of a server that was started: before, its host may be a name."""
        return reachable(self.config.host)

    def wait(self, look: Callable[[], None] = lambda: None) -> NoReturn:
        """Block while the server runs; raise ServingError when it ends by itself.

        Args:
            look: is called every LOOK_S.
        """
        assert self.supervisor is not None
        while True:
            try:
                status = self.supervisor.wait(LOOK_S)
                break
            except subprocess.TimeoutExpired:
                look()
        saved = ""
        if self.config.log_file is None:  # the log goes with the workspace
            place = Path(tempfile.gettempdir(), f"{self.workspace.shared_memory}.log")
            try:
                shutil.copyfile(self.log_file, place)
                saved = f" The log is in {place}."
            except OSError as error:  # the reason is worth more than the log
                saved = f" The log could not be saved in {place}: {error.strerror}."
        reason = failure_reason(self.log_file, self.log_start).rstrip(".")
        raise ServingError(f"the server ended, status {status}: {reason}.{saved}")

    def stop(self) -> None:
        """End the server, let it finish what is in flight, and remove its workspace."""
        self._end()
        self.workspace.remove()

    def hurry(self) -> None:
        """End the server without waiting for what is in flight, also while `stop` waits."""
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.send_signal(HURRYING)

    def _end(self) -> None:
        if self.supervisor is not None:
            assert self.supervisor.stdin is not None
            with suppress(BrokenPipeError):
                self.supervisor.stdin.close()
            try:
                self.supervisor.wait(STOP_TIMEOUT_S + 5)
            except subprocess.TimeoutExpired:
                self.supervisor.kill()  # the kernel then tells the server to end
                self.supervisor.wait()

    def _start(self) -> None:
        """Check what the server needs, start it, and wait until it is ready.

        A free port may be another process's by the time that Triton listens: then others are
        chosen.
        """
        installation = find_installation(self.config.tritonserver)
        asked, self.config = self.config, with_free_ports(self.config)
        if runtime := SERVED_RUNTIMES[self.config.runtime].in_process:
            check_installed(runtime)
        check_temporary_folder()
        self.workspace.create()  # which also frees the shared memory of servers that were killed
        # texts of an example, for each model that requests come to
        files = [self.repository / name / CONFIG_NAME for name in {*self.models} - {ENCODER_NAME}]
        inputs = [len(read_model_config(each).input) for each in files if each.is_file()]
        check_shared_memory(self.config, inputs)
        check_room(self.workspace.path)
        installation.assemble(self.workspace.path)
        if self.repository != (own := self.workspace.path.resolve() / REPOSITORY):
            own.symlink_to(self.repository)
        tries = PORT_TRIES if 0 in (getattr(asked, name) for name in PORT_FIELDS) else 1
        for left in reversed(range(tries)):
            try:
                self._launch(installation)
                self._wait_until_ready()
                return
            except PortTakenError:
                if not left:
                    raise
                self._end()
                self.config = with_free_ports(asked)

    def _launch(self, installation: Installation) -> None:
        """Start it, and let `bertender deploy` find it."""
        self.log_start = begin_log(self.log_file)
        self.supervisor = launch(
            installation, self.workspace, self.models, self.log_file, self.config
        )
        running = RunningServer(
            supervisor=self.supervisor.pid,
            host=self._reachable_host,
            http_port=self.config.http_port,
            grpc_port=self.config.grpc_port,
            repository=self.repository,
        )
        note_server(running, self.workspace.path)
        logger.info("tritonserver is starting, its log is %s", self.log_file)

    def _wait_until_ready(self) -> None:
        assert self.supervisor is not None
        deadline = time.monotonic() + self.config.ready_timeout_s
        while not is_ready(self._reachable_host, self.config.http_port, self.models):
            if self.supervisor.poll() is not None:
                reason = failure_reason(self.log_file, self.log_start)
                kind = PortTakenError if PORT_IN_USE in reason else ServingError
                raise kind(f"the server did not start: {reason}")
            if time.monotonic() > deadline:
                reason = failure_reason(self.log_file, self.log_start)
                raise ServingError(
                    f"the server was not ready within {self.config.ready_timeout_s:g} s: "
                    f"{reason} Give it longer with --ready-timeout-s."
                )
            time.sleep(POLL_S)


def with_free_ports(config: ServeConfig) -> ServeConfig:
    """Return the config with its host as an address, and every port 0 replaced by a free one.

    Raises:
        ConfigError: two of the ports are the same.
        PortTakenError, ServingError: as `free_ports`.
    """
    config.check_rules()
    asked = {name: port for name in PORT_FIELDS if (port := getattr(config, name)) is not None}
    host, chosen = free_ports(config.host, asked)
    return config.model_copy(update={"host": host, **chosen})


@contextmanager
def serving(models: Models, config: ServeConfig) -> Iterator[TritonServer]:
    """Serve ONNX artifacts inside the block; their model repository is temporary.

    Raises:
        ModelError: an artifact is not an ONNX classifier.
        ServingError: the server cannot start.
    """
    with prepared(models, config) as server, server:
        yield server


@contextmanager
def prepared(models: Models, config: ServeConfig) -> Iterator[TritonServer]:
    """Write the model repository of a server inside the block; the server is not started yet."""
    # the repository goes with the server even when this process is killed
    with Workspace() as workspace:
        # one that is started again must find its own files, whatever the artifact is by then
        once = not config.restart
        repository = write_repository(
            models, workspace.path / REPOSITORY, config, is_temporary=once
        )
        yield TritonServer(repository, config, workspace)


OVERWRITTEN = (
    "files of %s were overwritten while they are served: %s The server goes on with the model that "
    "it has loaded. It could not be started with these files again: write a new model to a folder "
    "of its own, and let it take over with `bertender deploy`."
)
UNREADABLE = (
    "files of %s cannot be read while they are served: %s. The server goes on with the model that "
    "it has loaded. It could not be started again while that lasts."
)


def serve_forever(
    models: Models,
    config: ServeConfig,
    on_ready: Callable[[TritonServer], None] = lambda server: None,
) -> None:
    """Serve ONNX artifacts in the foreground; return after SIGINT or SIGTERM and a clean stop.

    Call it from the main thread. Errors as in `serving`.

    Raises:
        ServingError: the server ended by itself.
    """
    try:
        with _interrupted_by_signals() as signals, prepared(models, config) as server:
            signals.again = server.hurry
            watch = Watch(server.repository)
            with server:
                on_ready(server)
                server.wait(lambda: report_overwritten(watch, models))
    except KeyboardInterrupt:
        logger.info("stopped on request")


def report_overwritten(watch: Watch, models: Models) -> None:
    """Warn at once that somebody writes into what is served, not at the next start.

    Args:
        watch: of the repository of the server.
        models: what it serves.
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
        """Of each artifact the stamp of its files, or why they could not be read."""

    def overwritten(self) -> dict[Path, DamagedArtifactError | OSError]:
        """Return what was found since the last call: folder of an artifact -> what is wrong.

        Files are read only where something has touched them. Those of a version that `deploy` has
        removed are no damage. Those that cannot be read, as where storage is away for a while, are
        an OSError once, and are looked at again with the next call.
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


class _Signals:
    """What signals do: the first interrupts, so that all is stopped in order; any further one
    hurries that, and interrupts nothing."""

    def __init__(self) -> None:
        self.again: Callable[[], None] = lambda: None
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.came:
            self.again()
            return
        self.came = True
        raise KeyboardInterrupt


@contextmanager
def _interrupted_by_signals() -> Iterator[_Signals]:
    """Make SIGTERM interrupt the block just as SIGINT (Ctrl-C) does."""
    signals = _Signals()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, signals)
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
