"""Triton behind the door: its files, command line and processes, and the reason if it ends.

door -> supervisor -> tritonserver -> Python stub. The supervisor ends the others when the door ends
in any way (see `supervisor`). Triton listens only for the door: HTTP on a socket in the workspace,
a private folder of this user; no gRPC; metrics on a loopback port.

Triton has no authentication. Anyone who reaches a port may register shared memory, load and unload
models, read statistics, and change trace and log settings; and valid requests can crash an older
version. Its option `--http-restricted-api` refuses requests without a header; here it closes
all routes to all clients but the door.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from bertender.core.errors import ConfigError
from bertender.models.runtimes import check_installed
from serve.config import SERVED_RUNTIMES, STANDARD_OUTPUT, ServeConfig
from serve.repository import model_names
from serve.repository.config_pbtxt import CONFIG_NAME, read_model_config
from serve.server import supervisor
from serve.server.addresses import free_ports
from serve.server.installation import BACKENDS, Installation, find_installation
from serve.server.supervisor import HURRYING, KILLING, TOKEN_MARK, TOKEN_VARIABLE
from serve.server.workspace import (
    CONTROL_SOCKET,
    REPOSITORY,
    Workspace,
    check_shared_memory,
    check_temporary_folder,
    log_file_of,
)
from serve.wire import ADMIN_HEADER, ENCODER_NAME, MODEL_NAME, WORKSPACE_VARIABLE

logger = logging.getLogger(__name__)

SUPERVISOR = Path(supervisor.__file__)
IN_FLIGHT_TIMEOUT_S = 10
STOP_TIMEOUT_S = 5
"""Seconds to stop Triton; there are no requests in flight by then."""

CATEGORIES = (
    *("health", "metadata", "inference", "model-config", "model-repository", "statistics"),
    *("shared-memory", "trace", "logging"),
)
"""All categories of routes in Triton."""


RESTRICTED = f"{','.join(CATEGORIES)}:{ADMIN_HEADER}={TOKEN_MARK}"
"""Option value that closes all routes to requests without the token."""


def launch(
    installation: Installation,
    workspace: Workspace,
    models: Sequence[str],
    log_file: Path,
    *,
    log_max_bytes: int,
    options: Mapping[str, object],
    token: str,
) -> subprocess.Popen[bytes]:
    """Start Triton with its supervisor, and return the supervisor.

    Args:
        installation: the server, assembled in the workspace.
        workspace: working directory of the server, with the model repository.
        models: names of the models to load at the start.
        log_file: log of the server.
        log_max_bytes: size beyond which the log file is rotated.
        options: addresses and restrictions; TOKEN_MARK stands for the token.
        token: token for the routes that the options close.
    """
    locks = [] if workspace.lock is None else [workspace.lock]
    own = {
        # both relative to the workspace, in which the server runs: Triton passes them to a shell,
        # which would split a path with a space
        "model-repository": REPOSITORY,
        "backend-directory": BACKENDS,
        "backend-config": f"python,shm-region-prefix-name={workspace.shared_memory}",
    }
    return subprocess.Popen(
        [
            *(sys.executable, "-I", "-S", str(SUPERVISOR)),
            *(f"--lock={lock}" for lock in locks),
            *(str(workspace.path), workspace.shared_memory, str(log_file)),
            *(str(log_max_bytes), str(STOP_TIMEOUT_S)),
            *_command(str(installation.binary), models, {**own, **options}),
        ],
        stdin=subprocess.PIPE,
        pass_fds=locks,
        cwd=workspace.path,  # the stub imports from this folder first, not from the user's
        env={
            **installation.environment(),
            TOKEN_VARIABLE: token,
            WORKSPACE_VARIABLE: str(workspace.path),
        },
        start_new_session=True,  # only bertender handles Ctrl-C, and stops Triton
    )


def attached_command(repository: Path, models: Sequence[str]) -> list[str]:
    """Return the command line of a Triton for `bertender serve --triton`: loopback address, no
    gRPC, and other ports than the door's."""
    options = {
        "model-repository": repository,
        "allow-grpc": "false",
        "http-address": LOOPBACK,
        "http-port": 8004,
        "metrics-address": LOOPBACK,
        "metrics-port": 8003,
    }
    return _command("tritonserver", models, options)


def _command(binary: str, models: Sequence[str], options: Mapping[str, object]) -> list[str]:
    of_every_start = {
        "exit-timeout-secs": IN_FLIGHT_TIMEOUT_S,
        # otherwise the server is not ready while `bertender deploy` loads another model
        "strict-readiness": "false",
        # other access to the same routes, which an environment variable could enable
        "allow-sagemaker": "false",
        "allow-vertex-ai": "false",
    }
    return [
        binary,
        "--disable-auto-complete-config",  # auto-completion would start the stub twice
        "--model-control-mode=explicit",  # these routes need the token
        *(f"--load-model={name}" for name in models),
        *(f"--{name}={value}" for name, value in {**options, **of_every_start}.items()),
    ]


TOKEN_BYTES = 32
TOKEN = re.compile(r"[A-Za-z0-9_~.+/-]{16,256}")
OTHERS = stat.S_IRWXG | stat.S_IRWXO


def admin_token(file: Path) -> str:
    """Return the token in a file; a missing file is created with a random token.

    Raises:
        ConfigError: other users may read the file, or it has no token.
    """
    try:
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        else:
            with os.fdopen(descriptor, "w", encoding="utf-8") as target:
                target.write(secrets.token_urlsafe(TOKEN_BYTES) + "\n")
        with file.open(encoding="utf-8") as source:
            rights = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            text = source.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"admin_token_file={file}: {error}. Name a file that this user can read, or one that "
            "does not exist yet and can be written."
        ) from None
    if rights & OTHERS:
        raise ConfigError(
            f"admin_token_file={file}: other users may read it (mode {rights:o}), and its token "
            f"controls the server. Restrict it: chmod 600 {file}"
        )
    return checked_token(
        text, f"admin_token_file={file}", "Remove the file, to have a random token written there."
    )


def checked_token(text: str, setting: str, advice: str = "") -> str:
    """Return the text of a file if it is a valid token.

    Args:
        text: stripped text of the file.
        setting: setting with the file, for the error.
        advice: further advice in the error.

    Raises:
        ConfigError: the text is not a token.
    """
    if not TOKEN.fullmatch(text):
        raise ConfigError(
            f"{setting}: no token in it. It needs one line of 16 to 256 letters, digits or "
            f"_ ~ . + / -. {advice}".rstrip()
        )
    return text


def begin_log(log_file: Path) -> int:
    """Return the size of a log in bytes; a missing log is created.

    Raises:
        ConfigError: the log cannot be written.
    """
    if log_file == STANDARD_OUTPUT:
        return 0
    try:
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab", buffering=0):
            return log_file.stat().st_size if log_file.is_file() else 0
    except OSError as error:
        raise ConfigError(
            f"log_file={log_file}: {error.strerror}. Name a file that this user can write with "
            "--log-file, or - for standard output."
        ) from None


ENDS = re.compile(
    r"^bertender: (the Python stub\b.+|the server was ended by .+|the server does not answer.+)$",
    re.M,
)
"""The supervisor's messages about the end of a server."""
FOLLOWS_FROM_AN_ERROR = "SIGABRT"
NEAR_LINES = 20
"""Number of lines before an end that may have its cause."""

REASONS = (
    re.compile(r"^(bash: .+)$", re.M),  # for a stub that cannot start
    re.compile(
        r"failed to load '[^']+' version \d+: (?:Internal: )?(.+?)(?:\\n\\nAt:.*|\"?)$", re.M
    ),
    re.compile(r"(failed to start .+ service: .+?)\s*\"?$", re.M),
    re.compile(r"^(.+error while loading shared libraries.+)$", re.M),
    re.compile(r"^(?:E\d{4} .*?\] (?!\"CudaDriver)\"?|error: )(.+?)\"?$", re.M),
)
"""Patterns of reasons for a server's end in its log, clearest first. Without a GPU, every log has a
harmless error about the CUDA driver."""


def failure_reason(log_file: Path, start: int = 0) -> str:
    """Return the reason for a server's end from its log, or the last lines of the log.

    Args:
        log_file: the log.
        start: size of the log in bytes when the server started; a shorter log was rotated.
    """
    if log_file == STANDARD_OUTPUT:
        return "the reason is in its log, on standard output."
    content = log_file.read_bytes() if log_file.is_file() else b""
    log = content[start if start <= len(content) else 0 :].decode(errors="replace")
    if reason := _reason_in(log):
        return reason
    return f"its log has no reason; its last lines: {' | '.join(log.splitlines()[-3:]) or '-'}"


def _reason_in(log: str) -> str | None:
    """Return the supervisor's message about an end, or else the clearest error."""
    if not (ends := [*ENDS.finditer(log)]):
        return _error_in(log)
    end = ends[-1][1]
    near = "\n".join(log[: ends[-1].start()].splitlines()[-NEAR_LINES:])
    cause = _error_in(near) if FOLLOWS_FROM_AN_ERROR in end else None
    return f"{end}; before that: {cause}" if cause else end


def _error_in(log: str) -> str | None:
    """Return the clearest error in lines of a log; of several equal ones, the last."""
    for pattern in REASONS:
        if found := pattern.findall(log):
            return " ".join(found[-1].replace(r"\n", " ").split())  # Triton escapes newlines
    return None


LOOPBACK = "127.0.0.1"
KILL_TIMEOUT_S = 5.0


class Triton:
    """The processes of a Triton server, which may be restarted, on a repository and in a workspace.

    Args:
        repository: a repository of `write_repository`.
        config: settings of the server.
        workspace: existing folder for Triton's files while it runs.
    """

    def __init__(self, repository: Path, config: ServeConfig, workspace: Workspace) -> None:
        self.repository = repository.resolve()
        self.models = model_names(self.repository) or (MODEL_NAME,)  # Triton reports its absence
        """Names of the models that `launch` loads."""
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
    def address(self) -> str:
        """Address of Triton's socket, through the supervisor's working directory, since the full
        path may be too long for a socket."""
        assert self.supervisor is not None
        return f"unix:/proc/{self.supervisor.pid}/cwd/{CONTROL_SOCKET}"

    def launch(self) -> None:
        """Start Triton, without waiting for its models.

        Raises:
            ConfigError: the log cannot be written.
            ServingError: see `check`.
        """
        installation = self._installation or self._assembled()
        _, ports = free_ports(LOOPBACK, {"metrics_port": 0})
        self.metrics_port = ports["metrics_port"]
        (self.workspace.path / CONTROL_SOCKET).unlink(missing_ok=True)  # left by a killed Triton
        self.log_start = begin_log(self.log_file)
        self.supervisor = launch(
            installation,
            self.workspace,
            self.models,
            self.log_file,
            log_max_bytes=int(self.config.log_max_mb * 2**20),
            options={
                "allow-grpc": "false",
                "http-address": f"unix:{CONTROL_SOCKET}",
                "metrics-address": LOOPBACK,
                "metrics-port": self.metrics_port,
                "http-restricted-api": RESTRICTED,
            },
            token=self.token,
        )
        logger.info("tritonserver is starting, its log is %s", self.log_file)

    def check(self) -> Installation:
        """Check all requirements of Triton; return its installation.

        Raises:
            ServerMissingError: there is no Triton binary.
            RuntimeMissingError: the runtime of the model is not installed.
            ServingError: there is too little disk space or shared memory.
        """
        installation = find_installation(self.config.tritonserver)
        if runtime := SERVED_RUNTIMES[self.config.runtime].in_process:
            check_installed(runtime)
        check_temporary_folder()
        # texts per example, for each model with requests
        files = [self.repository / name / CONFIG_NAME for name in {*self.models} - {ENCODER_NAME}]
        inputs = [len(read_model_config(each).input) for each in files if each.is_file()]
        check_shared_memory(self.config, inputs)
        return installation

    def _assembled(self) -> Installation:
        """Check the server's requirements, and assemble its files in the workspace."""
        installation = self.check()
        installation.assemble(self.workspace.path)
        if self.repository != (own := self.workspace.path.resolve() / REPOSITORY):
            own.symlink_to(self.repository)
        self._installation = installation
        return installation

    @property
    def reason(self) -> str:
        """Reason in the log why Triton ended, or did not become ready."""
        return failure_reason(self.log_file, self.log_start)

    def end(self) -> None:
        """Stop Triton; the supervisor then removes the workspace."""
        if self.supervisor is None:
            return
        assert self.supervisor.stdin is not None
        with suppress(BrokenPipeError):
            self.supervisor.stdin.close()
        try:
            self.supervisor.wait(STOP_TIMEOUT_S + 5)
        except subprocess.TimeoutExpired:
            self.supervisor.kill()  # the kernel then signals the server to end
            self.supervisor.wait()

    def hurry(self) -> None:
        """Kill Triton at once, also while `end` waits."""
        if self.supervisor is not None and self.supervisor.poll() is None:
            self.supervisor.send_signal(HURRYING)

    def kill(self) -> None:
        """Kill a hanging Triton, but keep the workspace for another `launch`."""
        assert self.supervisor is not None
        if self.supervisor.poll() is not None:
            return
        family = psutil.Process(self.supervisor.pid).children(recursive=True)
        self.supervisor.send_signal(KILLING)
        try:
            self.supervisor.wait(KILL_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # the supervisor itself hangs
            for process in (*family, self.supervisor):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            self.supervisor.wait()
