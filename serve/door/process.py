"""The door's process: starts and watches the engine, opens the ports, and drains requests at the
end.

`Artifacts` has the repository's files that the watch and the limits need.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvloop

from bertender.core.artifact import GOLDEN_NAME, Artifact, read_golden
from bertender.core.errors import BertenderError, ConfigError, ServingError
from bertender.core.hardware import M_MMAP_THRESHOLD, set_allocator
from bertender.problems import PROBLEMS
from bertender.problems.problem import Problem
from bertender.text.batch import Tokenize
from bertender.text.tokenizer import open_tokenizer
from serve.config import BackendParameters, ServeConfig
from serve.door.embedded import EmbeddedEngine
from serve.door.engine import Engine, Model
from serve.door.http import http_app, metrics_app
from serve.door.http_server import HttpServer, http_server
from serve.door.service import Door, DoorSettings
from serve.door.triton_engine import AttachedEngine, TritonEngine
from serve.door.watch import Heartbeat, Patience, WatchedEngine
from serve.page import Page
from serve.repository.config_pbtxt import (
    CONFIG_NAME,
    parameters_of,
    read_model_config,
    served_version,
)
from serve.server.addresses import is_loopback, listening_error, with_ports
from serve.server.supervisor import HURRYING, STOPPING
from serve.server.triton_process import IN_FLIGHT_TIMEOUT_S, Triton, admin_token
from serve.server.workspace import Workspace, log_file_of

if TYPE_CHECKING:
    import grpc

logger = logging.getLogger(__name__)

POLL_S = 0.05
QUIET_S = 1.0
"""More than the time of a request from a client to the door."""
LARGE_BYTES = 128 * 1024
"""Larger blocks are returned to the system when they are freed."""
OTHER_FILES = 64
"""Open files that are no connections: twice those of a door with a model."""
KINDS_OF_CONNECTIONS = 7
"""Those of three ports; of two of them, TLS handshakes, and calls to Triton."""
CLOSE_S = 2.0
"""Longest wait for connections to close when no request is in flight."""


def process_of(repository: Path, config: ServeConfig, workspace: Workspace) -> Process:
    """Return the process that serves a repository, and leaves at the signals to stop."""
    process = Process(_engine_of(repository, config, workspace), config, repository)
    process.leave_at_signals()
    return process


def _engine_of(repository: Path, config: ServeConfig, workspace: Workspace) -> Engine:
    if config.is_embedded:
        return EmbeddedEngine(repository, config, log_file_of(config, workspace))
    if config.triton is not None:
        return AttachedEngine(repository, config)
    return TritonEngine(Triton(repository, config, workspace))


def run(serving: Coroutine[Any, Any, None]) -> None:
    """Run a door in its own event loop."""
    # glibc would adapt to the first large body, and keep the memory of later ones
    set_allocator(M_MMAP_THRESHOLD, LARGE_BYTES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_alive(serving))


async def _alive(serving: Coroutine[Any, Any, None]) -> None:
    async with Heartbeat():
        await serving


class Process:
    """Serves an engine's models until it is told to leave.

    Args:
        engine: engine, not started yet.
        config: settings of the server; port 0 is replaced by a free port.
        repository: repository of its models.
    """

    def __init__(self, engine: Engine, config: ServeConfig, repository: Path) -> None:
        self.config = config
        self.artifacts = artifacts = Artifacts(repository)
        is_ours = config.triton is None
        # an engine started by another process may be away for any time
        self.engine = WatchedEngine(
            engine,
            artifacts.golden,
            restarts=config.restart or not is_ours,
            patience=None if is_ours else Patience(restarts=sys.maxsize),
            again="it starts again" if is_ours else "the door waits for it",
        )
        check_tls(config)
        token = None if config.admin_token_file is None else admin_token(config.admin_token_file)
        settings = DoorSettings(
            api_keys=config.api_keys,
            admin_token=token,
            allow_origins=config.allow_origin,
            access_log=config.access_log,
            otlp_endpoint=config.otlp_endpoint,
            behind_proxy=config.behind_proxy,
            is_local=is_loopback(config.host),
            tls_certificate=config.tls_certificate,
            tls_key=config.tls_key,
            most_connections=most_connections(),
        )
        self.door = Door(self.engine, settings, artifacts.count_tokens)
        if not (settings.is_local or config.api_keys or config.behind_proxy):
            logger.warning(
                "host=%s: anybody who reaches this address may send requests. Require keys with "
                "--api-keys.",
                config.host,
            )
        is_plain = config.tls_certificate is None and not config.behind_proxy
        if token and is_plain and not settings.is_local:
            logger.warning(
                "admin_token_file=%s, host=%s: the token crosses the network as plain text, and "
                "its readers control the server. Give --tls-certificate and --tls-key.",
                config.admin_token_file,
                config.host,
            )
        self.was_ready = False
        self._leaving = asyncio.Event()
        self._hurried = asyncio.Event()

    def leave_at_signals(self) -> None:
        """Handle the signals to stop: the first one leaves, further ones hurry."""
        loop = asyncio.get_running_loop()
        # nohup ignores one
        for number in {each for each in STOPPING if signal.getsignal(each) is not signal.SIG_IGN}:
            loop.add_signal_handler(number, self.leave)
        loop.add_signal_handler(HURRYING, self.hurry)

    def leave(self) -> None:
        """Begin to leave; a second call does not wait for requests in flight."""
        if self._leaving.is_set():
            self.hurry()
        self._leaving.set()

    def hurry(self) -> None:
        """Leave, without waiting for requests in flight."""
        self._leaving.set()
        self._hurried.set()
        self.engine.hurry()

    async def run(self, on_ready: Callable[[ServeConfig], None]) -> None:
        """Serve, and return after leaving, when all requests are answered.

        Args:
            on_ready: called with the config and its actual ports, in a thread.

        Raises:
            BertenderError: the engine cannot be started; PortTakenError: a port cannot be opened;
                ServingError: the engine ended, and is not started again.
        """
        self.config, sockets = with_ports(self.config)
        try:
            if await self._started():
                await self._serve(sockets, on_ready)
        finally:
            for each in sockets.values():
                each.close()
            await self.engine.stop()
            self.door.records.close()

    async def _started(self) -> bool:
        """Start the engine; return False if a signal to leave came meanwhile."""
        starting = asyncio.create_task(self.engine.start())
        leaving = asyncio.create_task(self._leaving.wait())
        await asyncio.wait({starting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if starting.done():
            starting.result()
            return not self._leaving.is_set()
        starting.cancel()
        await asyncio.wait({starting})
        return False

    async def _serve(
        self, sockets: dict[str, socket.socket], on_ready: Callable[[ServeConfig], None]
    ) -> None:
        settings = self.door.settings
        pages = Page(self.door, self.artifacts.folder).routes if self.config.page else ()
        apps = {"http_port": http_app(self.door, pages), "metrics_port": metrics_app(self.door)}
        refuse = partial(self.door.records.refuse, "http")
        servers = {
            name: http_server(app, settings, on_refusal=refuse) for name, app in apps.items()
        }
        for name in servers:
            self._listen(name, sockets[name])
        grpc_front = None
        if self.config.grpc_port is not None:
            grpc_front = await self._grpc(sockets["grpc_port"], self.config.grpc_port)
        tasks = [
            asyncio.create_task(server.serve(sockets=[sockets[name]]))
            for name, server in servers.items()
        ]
        died = asyncio.create_task(self.engine.died())
        leaving = asyncio.create_task(self._leaving.wait())
        try:
            while not all(server.started for server in servers.values()):
                for task in tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0)
            self.was_ready = True
            ready = asyncio.create_task(asyncio.to_thread(on_ready, self.config))
            await asyncio.wait({died, leaving, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            await self._drain([*servers.values()], tasks, grpc_front)
            await ready
            if died.done():
                raise ServingError(f"the server ended, {died.result().rstrip('.')}.")
        finally:
            for each in (died, leaving, *tasks):
                each.cancel()

    def _listen(self, name: str, bound: socket.socket) -> None:
        """Listen on a port, since uvloop does not report that it cannot. While the models loaded,
        another process that had bound the port too may have begun to listen."""
        try:
            bound.listen()
        except OSError as error:
            host, port, *_ = bound.getsockname()
            raise listening_error(host, name, port, error) from None

    async def _grpc(self, held: socket.socket, port: int) -> grpc.aio.Server:
        """Start to listen for gRPC, which opens its port itself."""
        from serve.door.grpc_front import grpc_server, listen  # loads gRPC, 11 MB

        front = grpc_server(self.door, (await self.engine.models()).values())
        held.close()
        try:
            listen(front, self.door.settings, self.config.host, port)
        except ServingError as error:
            # another process took the port, or the certificate is invalid
            taken = OSError(errno.EADDRINUSE, str(error))
            if self.config.tls_certificate is None:
                raise listening_error(self.config.host, "grpc_port", port, taken) from None
            raise
        await front.start()
        return front

    async def _drain(
        self,
        servers: list[HttpServer],
        tasks: list[asyncio.Task[None]],
        grpc_front: grpc.aio.Server | None,
    ) -> None:
        """Answer requests in flight and on open connections; tell clients to open no more."""
        self.door.leaving = True
        loop = asyncio.get_running_loop()
        begun = quiet_since = loop.time()
        stopping = [] if grpc_front is None else [grpc_front.stop(IN_FLIGHT_TIMEOUT_S)]
        leaving = [asyncio.ensure_future(each) for each in stopping]
        while not self._hurried.is_set():
            now = loop.time()
            is_busy = any(server.server_state.tasks for server in servers)
            if is_busy or not all(each.done() for each in leaving):
                quiet_since = now
            is_open = any(server.server_state.connections for server in servers)
            if now - begun > QUIET_S:
                for server in servers:
                    for listener in server.servers:
                        listener.close()
            if now - quiet_since > (QUIET_S if is_open else POLL_S):
                break
            if now - begun > IN_FLIGHT_TIMEOUT_S:
                break
            await asyncio.sleep(POLL_S)
        for server in servers:
            server.should_exit, server.force_exit = True, self._hurried.is_set()
        if self._hurried.is_set() and grpc_front is not None:
            await grpc_front.stop(None)
        await asyncio.wait({*tasks, *leaving}, timeout=CLOSE_S)


def most_connections() -> int:
    """Return the most connections of a port, and let this process open as many files, if it may: of
    the usual 1,024, idle connections would leave none to start a model's process again."""
    files = OTHER_FILES + KINDS_OF_CONNECTIONS * DoorSettings.most_connections
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY:
        files = min(files, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(now, files), most))
    return max(1, (files - OTHER_FILES) // KINDS_OF_CONNECTIONS)


def check_tls(config: ServeConfig) -> None:
    """Raise ConfigError for TLS files that cannot be used."""
    if config.tls_certificate is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # an encrypted key would prompt for its pass phrase
        context.load_cert_chain(config.tls_certificate, config.tls_key, password=lambda: "")
    except OSError as error:  # includes ssl.SSLError
        raise ConfigError(
            f"tls_certificate={config.tls_certificate}, tls_key={config.tls_key}: {error}. Name a "
            "certificate in PEM, its chain in it, and its unencrypted key."
        ) from None


class Artifacts:
    """The artifacts of the served versions. Methods are thread-safe.

    Args:
        repository: repository of `write_repository`.
    """

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        self._encoders: dict[str, tuple[Path, Problem[Any], Tokenize]] = {}
        """Name of a model -> folder of its served version, its problem, and its tokenizer."""

    def golden(self, model: Model) -> Sequence[str] | None:
        """Return the texts of a golden example, if the artifact has one."""
        try:
            artifact = Artifact.load(self.folder(model), verify=False)
            if GOLDEN_NAME not in artifact.card.files:
                return None
            problem = PROBLEMS[artifact.card.task.problem_type]
            return problem.to_texts(read_golden(artifact).texts[0].example)
        except (BertenderError, OSError):  # it is being replaced
            return None

    def count_tokens(self, model: Model, examples: Sequence[tuple[str, ...]]) -> list[int]:
        """Return the tokens of each example's longest row, at most one more than the model reads,
        up to the first example with too many."""
        problem, encode = self._encoder(model)
        counts = []
        for example in examples:
            batch = encode([problem.to_example(example)])
            is_cut = batch.truncated is not None and bool(batch.truncated[0])
            counts.append(batch.lengths()[0] + is_cut)
            if is_cut:  # refuses the request; tokenising 2 MB of others takes a second
                break
        return counts

    def _encoder(self, model: Model) -> tuple[Problem[Any], Tokenize]:
        """Return a model's problem and tokenizer, opened once for each version."""
        path = self.folder(model)
        if (opened := self._encoders.get(model.name)) is None or opened[0] != path:
            artifact = Artifact.load(path, verify=False)
            problem = PROBLEMS[artifact.card.task.problem_type]
            parameters = BackendParameters.from_model_config(model.config)
            tokenizer = open_tokenizer(path, parameters.max_length)
            opened = self._encoders[model.name] = path, problem, problem.encoder(tokenizer)
        return opened[1:]

    def folder(self, model: Model) -> Path:
        """Return the folder of a model's artifact here.

        An attached Triton numbers versions itself, and its artifact may be in another folder.
        """
        config = read_model_config(self.repository / model.name / CONFIG_NAME)
        version, parameters = str(served_version(config)), parameters_of(config)
        own = BackendParameters.from_model_config(model.config)
        if own.digest != parameters.digest:  # a deployment goes on: that version is not loaded yet
            version, parameters = model.version, own
        return (self.repository / model.name / version / parameters.artifact).resolve()
