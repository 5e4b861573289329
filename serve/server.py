"""The real Triton server on a model repository: started, waited for, and stopped without a trace.

bertender -> supervisor -> tritonserver -> Python stub. The supervisor (see there) ends the others
when bertender ends in any way. Everything listens on the loopback address by default.
"""

from __future__ import annotations

import http.client
import logging
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn, Self
from uuid import uuid4

from bertender.core.artifact import Artifact
from bertender.core.errors import ServingError
from serve.administration import admin_token, check_closed, closing_arguments
from serve.config import ServeConfig
from serve.in_flight import WORKSPACE_VARIABLE
from serve.installation import Installation, find_installation
from serve.ports import with_free_ports
from serve.repository import write_repository
from serve.server_log import STANDARD_OUTPUT, begin_log, failure_reason
from serve.shared_memory import check_shared_memory
from serve.wire import MODEL_NAME

__all__ = ["TritonServer", "serve_forever", "serving"]

logger = logging.getLogger(__name__)

SUPERVISOR = Path(__file__).with_name("supervisor") / "__main__.py"
HIDDEN_ARGUMENTS = Path(__file__).with_name("hidden_arguments.py")
IN_FLIGHT_TIMEOUT_S = 10
STOP_TIMEOUT_S = 20
POLL_S = 0.05
PROBE_TIMEOUT_S = 2.0


class TritonServer:
    """A context manager: the server is ready inside the block, and stopped after it.

    Args:
        repository: what `write_repository` wrote.
        config: ports and timeouts; a port 0 is replaced by a free one.
        workspace: the folder for what the server needs while it runs; it is removed with it. By
            default a new temporary one.

    Raises (on entering):
        ServerMissingError: there is no Triton binary.
        PortTakenError: another process listens on one of the ports.
        ConfigError: the log cannot be written.
        ServingError: the server ended, or was not ready in time; the reason is in the message.
    """

    def __init__(
        self, repository: Path, config: ServeConfig, workspace: Path | None = None
    ) -> None:
        self.repository = repository.resolve()
        self.config = config
        self.shared_memory = f"bertender-serve-{uuid4()}"
        self.workspace = workspace or Path(tempfile.gettempdir(), self.shared_memory)
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.log_start = 0

    def __enter__(self) -> Self:
        try:
            self._start(find_installation(self.config.tritonserver))
            self._wait_until_ready()
            check_closed(self._reachable_host, self.config.http_port)
            self._report_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def http_url(self) -> str:
        return f"http://{self._reachable_host}:{self.config.http_port}"

    @property
    def grpc_url(self) -> str:
        return f"grpc://{self._reachable_host}:{self.config.grpc_port}"

    @property
    def metrics_url(self) -> str:
        return f"http://{self._reachable_host}:{self.config.metrics_port}/metrics"

    @property
    def log_file(self) -> Path:
        if self.config.log_file == STANDARD_OUTPUT:
            return STANDARD_OUTPUT
        return (self.config.log_file or self.workspace / "tritonserver.log").resolve()

    @property
    def _reachable_host(self) -> str:
        everywhere = self.config.host == "0.0.0.0"  # noqa: S104 - asked, not bound
        return "127.0.0.1" if everywhere else self.config.host

    def wait(self) -> NoReturn:
        """Block while the server runs; raise ServingError when it ends by itself."""
        assert self.supervisor is not None
        status = self.supervisor.wait()
        raise ServingError(
            f"the server ended, status {status}: {self._failure_reason()}{self._saved_log()}"
        )

    def stop(self) -> None:
        """End the server, let it finish what is in flight, and remove its workspace."""
        if self.supervisor is not None:
            assert self.supervisor.stdin is not None
            with suppress(BrokenPipeError):
                self.supervisor.stdin.close()
            try:
                self.supervisor.wait(STOP_TIMEOUT_S + 5)
            except subprocess.TimeoutExpired:
                self.supervisor.kill()  # the kernel then ends the server
                self.supervisor.wait()
        shutil.rmtree(self.workspace, ignore_errors=True)

    def _failure_reason(self) -> str:
        return failure_reason(self.log_file, self.log_start)

    def _saved_log(self) -> str:
        """Save the log of a server that ended by itself from the workspace; return the place."""
        if self.config.log_file is not None:
            return ""
        place = Path(tempfile.gettempdir(), f"{self.shared_memory}.log")
        try:
            shutil.copyfile(self.log_file, place)
        except OSError as error:  # the reason is worth more than the log
            return f" The log could not be saved in {place}: {error.strerror}."
        return f" The log is in {place}."

    def _start(self, installation: Installation) -> None:
        self.config = with_free_ports(self.config)
        check_shared_memory(self.config)
        closing = closing_arguments(admin_token(self.config.admin_token_file))
        self.workspace.mkdir(mode=0o700, exist_ok=True)
        self.log_start = begin_log(self.log_file)
        installation.assemble(self.workspace)
        traces = (str(self.workspace), self.shared_memory, str(self.log_file))
        log_max_bytes = int(self.config.log_max_mb * 2**20)
        self.supervisor = subprocess.Popen(
            [
                *(sys.executable, "-I", "-S", str(SUPERVISOR)),
                *(["--restart"] if self.config.restart else []),
                *(*traces, str(log_max_bytes), str(STOP_TIMEOUT_S)),
                *(sys.executable, "-I", "-S", str(HIDDEN_ARGUMENTS)),
                *self._command(installation),
                *(f"@{variable}" for variable in closing),
            ],
            stdin=subprocess.PIPE,
            cwd=self.workspace,  # the stub imports from its folder first: not from the user's
            env={
                **installation.environment(self.workspace),
                **closing,
                WORKSPACE_VARIABLE: str(self.workspace),
            },
            start_new_session=True,  # Ctrl-C is for bertender, which then stops the server
        )
        logger.info("tritonserver is starting, its log is %s", self.log_file)

    def _command(self, installation: Installation) -> list[str]:
        options = {
            "model-repository": self.repository,
            "backend-directory": self.workspace / "backends",
            "http-address": self.config.host,
            "grpc-address": self.config.host,
            "metrics-address": self.config.host,
            "http-port": self.config.http_port,
            "grpc-port": self.config.grpc_port,
            "metrics-port": self.config.metrics_port,
            "backend-config": f"python,shm-region-prefix-name={self.shared_memory}",
            "exit-timeout-secs": IN_FLIGHT_TIMEOUT_S,
            # other ways to the same routes, which an environment variable may open
            "allow-sagemaker": "false",
            "allow-vertex-ai": "false",
        }
        return [
            str(installation.binary),
            "--disable-auto-complete-config",  # completing would start the stub twice
            *(f"--{name}={value}" for name, value in options.items()),
        ]

    def _wait_until_ready(self) -> None:
        assert self.supervisor is not None
        deadline = time.monotonic() + self.config.ready_timeout_s
        while not _is_ready(self._reachable_host, self.config.http_port):
            if self.supervisor.poll() is not None:
                raise ServingError(f"the server did not start: {self._failure_reason()}")
            if time.monotonic() > deadline:
                raise ServingError(
                    f"the server was not ready within {self.config.ready_timeout_s:g} s: "
                    f"{self._failure_reason()} Give it longer with --ready-timeout-s."
                )
            time.sleep(POLL_S)

    def _report_ready(self) -> None:
        """Let the supervisor know that it is ready: what fails before is not started again."""
        assert self.supervisor is not None and self.supervisor.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; `wait` reports why
            self.supervisor.stdin.write(b"ready\n")
            self.supervisor.stdin.flush()


@contextmanager
def serving(artifact: Artifact, config: ServeConfig) -> Iterator[TritonServer]:
    """Serve an ONNX artifact inside the block; its model repository is temporary.

    Raises:
        ModelError: the artifact is not an ONNX classifier.
        ServingError: the server cannot start.
    """
    # the server's own workspace, which goes with the server even when this process is killed
    workspace = Path(tempfile.mkdtemp(prefix="bertender-serve-"))
    try:
        repository = write_repository(artifact, workspace / "models", config)
        with TritonServer(repository, config, workspace) as server:
            yield server
    finally:
        shutil.rmtree(workspace, ignore_errors=True)


def serve_forever(
    artifact: Artifact,
    config: ServeConfig,
    on_ready: Callable[[TritonServer], None] = lambda server: None,
) -> None:
    """Serve an ONNX artifact in the foreground; return after SIGINT or SIGTERM and a clean stop.

    Call it from the main thread. Errors as in `serving`.

    Raises:
        ServingError: the server ended by itself.
    """
    try:
        with _interrupted_by_signals(), serving(artifact, config) as server:
            on_ready(server)
            server.wait()
    except KeyboardInterrupt:
        logger.info("stopped on request")


def _is_ready(host: str, port: int) -> bool:
    """Ask by plain HTTP: an interrupt inside tritonclient's event loop would print a traceback."""
    connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", f"/v2/models/{MODEL_NAME}/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):  # nothing listens yet, or a stranger does
        return False
    finally:
        connection.close()


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """Make SIGTERM interrupt the block just as SIGINT (Ctrl-C) does."""

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
