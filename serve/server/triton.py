"""Triton behind the door: its files, its command line, its processes, and the reason of its end.

door -> supervisor -> tritonserver -> Python stub. The supervisor (see there) ends the others when
the door ends in any way. Triton itself listens for nobody but the door: gRPC at a socket in the
workspace, a folder of this user alone, each of its routes closed to who has not the door's token;
no HTTP; metrics on a loopback port.
"""

from __future__ import annotations

import logging
import secrets
import subprocess
from contextlib import suppress
from pathlib import Path

import psutil

from bertender.models.runtimes import check_installed
from serve.config import SERVED_RUNTIMES, ServeConfig
from serve.repository.config_pbtxt import CONFIG_NAME, read_model_config
from serve.repository.write import model_names
from serve.server.addresses import free_ports
from serve.server.installation import Installation, find_installation
from serve.server.launch import (
    STOP_TIMEOUT_S,
    begin_log,
    door_options,
    failure_reason,
    launch,
)
from serve.server.supervisor import HURRYING, KILLING
from serve.server.workspace import (
    CONTROL_SOCKET,
    REPOSITORY,
    Workspace,
    check_room,
    check_shared_memory,
    check_temporary_folder,
    log_file_of,
)
from serve.wire import ENCODER_NAME, MODEL_NAME

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
KILL_TIMEOUT_S = 5.0


class Triton:
    """The processes of one server after another, on one repository and in one workspace.

    Args:
        repository: what `write_repository` wrote.
        config: of the server.
        workspace: a folder that is there, for what Triton needs while it runs.
    """

    def __init__(self, repository: Path, config: ServeConfig, workspace: Workspace) -> None:
        self.repository = repository.resolve()
        self.models = model_names(self.repository) or (MODEL_NAME,)  # whose absence is reported
        """Names of those that `launch` loads."""
        self.config = config
        self.workspace = workspace
        self.token = secrets.token_urlsafe(32)
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.metrics_port = 0
        self.log_start = 0
        self._installation: Installation | None = None

    @property
    def log_file(self) -> Path:
        return log_file_of(self.config, self.workspace)

    @property
    def grpc_address(self) -> str:
        """Of its socket, by the folder that the supervisor runs in: a path may be longer than the
        address of a socket can be."""
        assert self.supervisor is not None
        return f"unix:/proc/{self.supervisor.pid}/cwd/{CONTROL_SOCKET}"

    def launch(self) -> None:
        """Start it; its models are not ready yet.

        Raises:
            ConfigError: the log cannot be written.
            ServingError: as `check`.
        """
        installation = self._installation or self._assembled()
        _, ports = free_ports(LOOPBACK, {"metrics_port": 0})
        self.metrics_port = ports["metrics_port"]
        (self.workspace.path / CONTROL_SOCKET).unlink(missing_ok=True)  # of one that was killed
        self.log_start = begin_log(self.log_file)
        self.supervisor = launch(
            installation,
            self.workspace,
            self.models,
            self.log_file,
            log_max_bytes=int(self.config.log_max_mb * 2**20),
            options=door_options(LOOPBACK, self.metrics_port),
            token=self.token,
        )
        logger.info("tritonserver is starting, its log is %s", self.log_file)

    def check(self) -> Installation:
        """Return what runs it, once everything is there that it needs.

        Raises:
            ServerMissingError: there is no Triton binary.
            RuntimeMissingError: the runtime of the model is not installed.
            ServingError: there is no room for it.
        """
        installation = find_installation(self.config.tritonserver)
        if runtime := SERVED_RUNTIMES[self.config.runtime].in_process:
            check_installed(runtime)
        check_temporary_folder()
        # texts of an example, for each model that requests come to
        files = [self.repository / name / CONFIG_NAME for name in {*self.models} - {ENCODER_NAME}]
        inputs = [len(read_model_config(each).input) for each in files if each.is_file()]
        check_shared_memory(self.config, inputs)
        check_room(self.workspace.path)
        return installation

    def _assembled(self) -> Installation:
        """Check what the server needs, and lay out its files in the workspace."""
        installation = self.check()
        installation.assemble(self.workspace.path)
        if self.repository != (own := self.workspace.path.resolve() / REPOSITORY):
            own.symlink_to(self.repository)
        self._installation = installation
        return installation

    @property
    def reason(self) -> str:
        """The line of its log that says why it has ended, or does not become ready."""
        return failure_reason(self.log_file, self.log_start)

    def end(self) -> None:
        """End it; the supervisor then removes the workspace."""
        if self.supervisor is None:
            return
        assert self.supervisor.stdin is not None
        with suppress(BrokenPipeError):
            self.supervisor.stdin.close()
        try:
            self.supervisor.wait(STOP_TIMEOUT_S + 5)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()  # the kernel then tells the server to end
            self.supervisor.wait()

    def hurry(self) -> None:
        """End it at once, also while `end` waits."""
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.send_signal(HURRYING)

    def kill(self) -> None:
        """End one that hangs; the workspace stays, so that `launch` may follow."""
        assert self.supervisor is not None
        if self.supervisor.poll() is not None:
            return
        family = psutil.Process(self.supervisor.pid).children(recursive=True)
        self.supervisor.send_signal(KILLING)
        try:
            self.supervisor.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # it is stopped itself
            for process in (*family, self.supervisor):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.supervisor.wait()
