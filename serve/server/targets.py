"""Targets of deployments: a model's folder of versions, and the server that reads it.

    MODEL/config.pbtxt     names the served version; replaced atomically
    MODEL/2/               the served version
    MODEL/1/               an earlier one

A version appears atomically, by a rename, and is loaded only once config.pbtxt names it. If a
deployment is killed, the old or the new version is served, and the next deployment cleans up.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import logging
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import psutil

from bertender.core.artifact import Artifact
from bertender.core.errors import (
    ArtifactError,
    BertenderError,
    BusyError,
    ConfigError,
    DeploymentError,
    ServingError,
    nearest_hint,
)
from bertender.core.files import replacing, replacing_directory
from bertender.text.tokenizer import stated_longest_input
from serve.client.access import (
    NO_ACCESS,
    URL_SCHEMES,
    Access,
    AccessConfig,
    open_access,
    parse_url,
)
from serve.config import BackendParameters, DeployConfig, ServeConfig
from serve.repository import cannot_be_written, fill_version, is_repository, model_names
from serve.repository.config_pbtxt import (
    CONFIG_NAME,
    FIRST_VERSION,
    ModelConfig,
    config_of_version,
    model_config,
    parameters_of,
    read_model_config,
    served_version,
    write_model_config,
)
from serve.server.addresses import is_same_host
from serve.server.server import Server
from serve.server.supervisor import STUB_NAME
from serve.server.triton_process import admin_token
from serve.server.workspace import (
    REPOSITORY,
    RunningServer,
    Workspace,
    check_shared_memory,
    is_listening,
    running_servers,
)
from serve.wire import ADMIN_HEADER, CANDIDATE_SUFFIX, ENCODER_NAME

logger = logging.getLogger(__name__)


class Place(NamedTuple):
    """A model on a server."""

    url: str
    model: str
    access: AccessConfig = NO_ACCESS


class Target:
    """A target of a deployment.

    Args:
        repository: model repository of the server.
    """

    state: str
    """Result of a deployment to this target, in one word."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository

    def check_address(self) -> None:
        """Raise ServingError where another process may listen at the server's address."""

    def prepare(self, folder: ModelFolder) -> None:
        """Remove the remains of a killed deployment from the server."""

    def candidate(self, folder: ModelFolder, artifact: Artifact) -> AbstractContextManager[Place]:
        """Run an artifact with a model's settings inside the block."""
        raise NotImplementedError

    def activate(self, folder: ModelFolder) -> None:
        """Switch the server to the version that config.pbtxt names.

        Raises:
            DeploymentError: the version does not answer; the server is unchanged.
        """

    def settle(self, folder: ModelFolder) -> None:
        """Wait until other versions have finished their requests and are unloaded."""

    def is_answered(self, folder: ModelFolder) -> bool:
        """Return whether the version that config.pbtxt names answers, as far as it is known."""
        return True


class FolderTarget(Target):
    """A repository without a server: the candidate runs in a temporary server."""

    state = "written"

    def __init__(self, repository: Path, config: DeployConfig) -> None:
        super().__init__(repository)
        self.config = config

    @contextmanager
    def candidate(self, folder: ModelFolder, artifact: Artifact) -> Iterator[Place]:
        own = {
            "tritonserver": self.config.tritonserver,
            "ready_timeout_s": self.config.timeout_s,
        }
        settings = _settings(folder).model_copy(update=own)
        with Workspace() as workspace:
            repository = workspace.path / REPOSITORY
            folder.write_candidate(artifact, repository / folder.name)
            with Server(repository, settings, workspace) as server:
                yield Place(server.http_url, folder.name)


class ServerTarget(Target):
    """A running server on this machine: the candidate is loaded next to the served model."""

    state = "serving"
    probe_s = 10.0
    """Longest wait in seconds for a server that may have died."""

    def __init__(self, running: RunningServer, control: ModelControl, access: AccessConfig) -> None:
        super().__init__(running.repository)
        self.running = running
        self.control = control
        self.access = access

    def check_address(self) -> None:
        check_listening(self.running)

    def prepare(self, folder: ModelFolder) -> None:
        self.control.check_token()
        end_stubs(folder.candidate)
        self.control.unload(folder.candidate.name)

    @contextmanager
    def candidate(self, folder: ModelFolder, artifact: Artifact) -> Iterator[Place]:
        if not self.running.is_embedded:
            check_shared_memory(_settings(folder), [len(folder.config.input)])
        name = folder.candidate.name
        try:
            folder.write_candidate(artifact, folder.candidate)
            self.control.load(name)
            yield Place(self.control.url, name, self.access)
        except BaseException:
            end_stubs(folder.candidate)  # a hanging candidate would never be unloaded
            raise
        finally:
            try:
                self.control.unload(name)
            except (
                BertenderError
            ) as error:  # do not hide an earlier error; the next deployment cleans up
                logger.warning("%s may still be loaded: %s", name, error)
            shutil.rmtree(folder.candidate, ignore_errors=True)

    def activate(self, folder: ModelFolder) -> None:
        version = folder.served  # read first, since a dying server may remove its repository
        try:
            self.control.load(folder.name)
        except BaseException:
            if self.control.is_ready(folder.name, version):
                return  # already done, despite a late interruption
            end_stubs(folder.path / str(version))
            others = self.control.versions(folder.name) - {version}
            self.control.wait_for(folder.name, *others)
            raise

    def settle(self, folder: ModelFolder) -> None:
        self.control.wait_for(folder.name, folder.served)

    def is_answered(self, folder: ModelFolder) -> bool:
        probe = replace(self.control, timeout_s=min(self.control.timeout_s, self.probe_s))
        try:
            return probe.is_ready(folder.name, folder.served)
        except BertenderError:
            return False


def target_of(to: str, config: DeployConfig) -> Target:
    """Return the target of a URL or a directory.

    Raises:
        ConfigError: `to` is neither, or there are settings for the other kind.
    """
    if urlsplit(to).scheme in URL_SCHEMES:
        return _server(to, config)
    if not Path(to).is_dir():
        raise ConfigError(
            f"--to {to}: no such directory, and no url. Give the directory of a model repository "
            "(`bertender serve --repository-only`), or the address of a running `bertender serve`, "
            "as http://127.0.0.1:8000."
        )
    of_servers = ("admin_token_file", "api_key_file", "ca_file")
    if unused := [name for name in of_servers if getattr(config, name)]:
        raise ConfigError(
            f"{config.as_set(unused)}: it is for a running server, and --to {to} is a directory. "
            "Leave it out, or give the server's address."
        )
    return FolderTarget(Path(to).resolve(), config)


def _server(url: str, config: DeployConfig) -> ServerTarget:
    if config.tritonserver:
        raise ConfigError(
            f"tritonserver={config.tritonserver}: the model is tried on the running server. Leave "
            "it out."
        )
    if config.admin_token_file is None:
        raise ConfigError(
            "admin_token_file is not set: loading models needs the server's token. Start it with "
            "`bertender serve --admin-token-file FILE`, and name the same file here."
        )
    if not config.admin_token_file.is_file():
        raise ConfigError(
            f"admin_token_file={config.admin_token_file}: there is no such file. Name the one that "
            "the server was started with: `bertender serve --admin-token-file FILE`."
        )
    address = parse_url(url)
    port = urlsplit(f"//{address.host_and_port}").port
    for server in running_servers():
        if port in (server.http_port, server.grpc_port) and is_same_host(address.host, server.host):
            # with TLS the certificate authenticates the server; otherwise the listener at the
            # address is checked before each request
            named = server.model_copy(update={"host": address.host}) if server.has_tls else server
            access = open_access(parse_url(named.url), config.access)
            token = admin_token(config.admin_token_file)
            control = ModelControl(server, token, config.timeout_s, named.url, access)
            return ServerTarget(server, control, config.access)
    raise ConfigError(
        f"--to {url}: no `bertender serve` of this user listens there on this machine, as far as "
        f"the notes in {tempfile.gettempdir()} say. Run `bertender deploy` where the server runs "
        "(in its container, by its user, with its TMPDIR), and give the server's own address, not "
        "that of a proxy. For another server, deploy into its repository: --to DIRECTORY."
    )


def _settings(folder: ModelFolder) -> ServeConfig:
    """Return server settings for a model of a repository."""
    config, parameters = folder.config, folder.limits
    return ServeConfig(
        http_port=0,
        metrics_port=0,
        runtime=parameters.runtime,
        max_batch_size=config.max_batch_size,
        instances=sum(group.count for group in config.instance_group) or 1,
        max_text_bytes=parameters.max_text_bytes,
        max_queue_texts=parameters.max_queue_texts,
    )


def check_listening(server: RunningServer) -> None:
    """Raise ServingError where another process could receive the token or golden texts."""
    if not is_listening(server):
        raise ServingError(
            f"the server does not listen at {server.url}: it has ended or is being restarted, and "
            "another process may listen there. Nothing was sent to it. Try again when the server "
            "is ready."
        )


def end_stubs(candidate: Path) -> None:
    """End the Python processes of a candidate, found by its model folder, so that it unloads."""
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.Error):  # the process has ended, or is another user's
            words = process.info["cmdline"] or []
            if len(words) < 2 or Path(words[0]).name != STUB_NAME:
                continue
            # the path is relative to the server's folder, through a link to the repository
            code = Path(process.cwd(), words[1]).resolve()
            if candidate.resolve() in code.parents:
                process.kill()


POLL_S = 0.1
IN_MEMORY = frozenset({"READY", "LOADING", "UNLOADING"})
"""States of versions that are in memory."""


@dataclass(frozen=True)
class ModelControl:
    """Loads and unloads models of a server through its administrative routes, with its token.

    A served version is never reloaded: under load, that corrupts the memory of Triton 2.51, which
    then hangs. Loading a new version next to it is safe. Each method waits up to `timeout_s` for
    its result, and raises DeploymentError with the server's reason if it fails.
    """

    server: RunningServer
    token: str = field(repr=False)
    timeout_s: float
    url: str
    """HTTP URL of the server, with the host name of its certificate."""
    access: Access

    def check_token(self) -> None:
        """Raise ConfigError where the server refuses the token."""
        self._index()

    def load(self, model: str) -> None:
        """Load a model from its folder; the old version answers until the new one is ready."""
        self._ask(f"load {model}", f"models/{model}/load")

    def unload(self, model: str) -> None:
        """Unload a model after its requests in flight, if it is loaded."""
        if self.versions(model):
            self._ask(f"unload {model}", f"models/{model}/unload")
        self.wait_for(model)

    def wait_for(self, model: str, *versions: int) -> None:
        """Wait until other versions of a model are unloaded."""
        deadline = time.monotonic() + self.timeout_s
        while leaving := self.versions(model) - {*versions}:
            if time.monotonic() > deadline:
                names = ", ".join(map(str, sorted(leaving)))
                raise DeploymentError(
                    f"version {names} of {model!r} is still loaded after {self.timeout_s:g} s. "
                    "Give it longer with --timeout-s."
                )
            time.sleep(POLL_S)

    def versions(self, model: str) -> set[int]:
        """Return the loaded versions of a model."""
        return {version for version, state in self._states(model) if state in IN_MEMORY}

    def is_ready(self, model: str, version: int) -> bool:
        """Return whether a version of a model answers."""
        return (version, "READY") in self._states(model)

    def _states(self, model: str) -> set[tuple[int, str]]:
        return {
            (int(each.get("version") or 0), each.get("state", ""))
            for each in self._index()
            if each["name"] == model
        }

    def _index(self) -> list[dict[str, str]]:
        index: list[dict[str, str]] = json.loads(self._ask("list its models", "index"))
        return index

    def _ask(self, wish: str, route: str) -> bytes:
        check_listening(self.server)  # each request has the token
        address = urlsplit(self.url)
        place, context = (address.hostname or "", address.port), self.access.context
        connection = http.client.HTTPConnection(*place, timeout=self.timeout_s)
        if context is not None:
            connection = http.client.HTTPSConnection(
                *place, timeout=self.timeout_s, context=context
            )
        try:
            headers = {**self.access.headers, ADMIN_HEADER: self.token}
            connection.request("POST", f"/v2/repository/{route}", b"{}", headers)
            response = connection.getresponse()
            status, content = response.status, response.read()
        except TimeoutError:
            raise DeploymentError(
                f"the server does not {wish} within {self.timeout_s:g} s. Give it longer with "
                "--timeout-s."
            ) from None
        except ssl.SSLCertVerificationError as error:
            raise ConfigError(
                f"no trusted TLS connection to {self.url} ({error.verify_message}). Name its "
                "certificate authority with --ca-file, and the server as in its certificate."
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise DeploymentError(f"the server does not {wish}: {error}") from None
        finally:
            connection.close()
        if status == http.HTTPStatus.OK:
            return content
        if status == http.HTTPStatus.FORBIDDEN:
            raise ConfigError(
                "admin_token_file: the server refuses this token. Name the file that `bertender "
                "serve --admin-token-file` was started with."
            )
        raise DeploymentError(f"the server does not {wish}: {_reason(content)}")


def _reason(content: bytes) -> str:
    """Return the reason in the server's response."""
    try:
        return " ".join(str(json.loads(content)["error"]).split())
    except (ValueError, KeyError, TypeError):
        return content.decode(errors="replace")


@dataclass(frozen=True)
class Version:
    """A version of a model, added to its folder."""

    number: int
    config: ModelConfig
    """Configuration with this version."""


@dataclass(frozen=True)
class ModelFolder:
    """A model of a repository."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def candidate(self) -> Path:
        """Folder of the model's candidate."""
        return self.path.with_name(f"{self.name}{CANDIDATE_SUFFIX}")

    @property
    def config(self) -> ModelConfig:
        """The configuration of the served version."""
        return read_model_config(self.path / CONFIG_NAME)

    @property
    def limits(self) -> BackendParameters:
        """Parameters of the backend."""
        return parameters_of(self.config)

    @property
    def versions(self) -> list[int]:
        """All versions, lowest first."""
        return sorted(int(each.name) for each in self.path.iterdir() if each.name.isdecimal())

    @property
    def served(self) -> int:
        """The version that config.pbtxt names."""
        return served_version(self.config)

    def artifact(self, version: int) -> Artifact:
        """Return the artifact of a version, without checking digests."""
        return Artifact.load(self.path / str(version) / "artifact", verify=False)

    def sweep(self) -> None:
        """Remove the remains of a killed deployment: drafts, a candidate, unnamed versions."""
        unnamed = [str(each) for each in self.versions if each > self.served]
        for left in (*self.path.glob(".*.draft-*"), *(self.path / each for each in unnamed)):
            _remove(left)
        for left in (*self.path.parent.glob(f".{self.candidate.name}.draft-*"), self.candidate):
            _remove(left)

    def write_candidate(self, artifact: Artifact, model: Path) -> None:
        """Write a candidate with this model's settings into the folder `model`."""
        with _writing(self.path.parent, artifact), replacing_directory(model) as draft:
            version = draft / str(FIRST_VERSION)
            stamp = fill_version(version, artifact, is_temporary=False)
            config = self._config_of(artifact, stamp, model.name, FIRST_VERSION)
            write_model_config(draft / CONFIG_NAME, config)

    def add(self, artifact: Artifact) -> Version:
        """Add a version, without loading it."""
        number = max(*self.versions, self.served) + 1
        folder = self.path / str(number)
        with _writing(self.path.parent, artifact), replacing_directory(folder) as draft:
            stamp = fill_version(draft, artifact, is_temporary=False)
        return Version(number, self._config_of(artifact, stamp, self.name, number))

    def select(self, config: ModelConfig) -> None:
        """Replace config.pbtxt, which names the served version, atomically."""
        with replacing(self.path / CONFIG_NAME) as draft:
            write_model_config(draft, config)

    def remove(self, version: int) -> None:
        """Remove a version."""
        _remove(self.path / str(version))

    def prune(self, keep: int) -> list[int]:
        """Remove all but the newest `keep` of the earlier versions; return the remaining ones."""
        earlier = [each for each in self.versions if each < self.served]
        kept = earlier[-keep:] if keep else []
        for version in set(earlier) - set(kept):
            self.remove(version)
        return kept

    def _config_of(
        self, artifact: Artifact, stamp: str | None, name: str, version: int
    ) -> ModelConfig:
        fresh = model_config(
            artifact.card,
            ServeConfig(),
            artifact.digest,
            stamp,
            longest_input=stated_longest_input(artifact.path),
        )
        return config_of_version(self.config, fresh, name, version)


def model_folder(repository: Path, name: str) -> ModelFolder:
    """Return the folder of a model in a repository.

    Raises:
        ArtifactError: `repository` is not a repository of `bertender serve`.
        ConfigError: the repository has no such model, or a backend of Triton runs its graph.
    """
    if not is_repository(repository):
        raise ArtifactError(
            f"{repository} is not a model repository of bertender. Write one: bertender serve "
            "ARTIFACT --repository-only DIRECTORY."
        )
    if name not in (known := model_names(repository)):
        raise ConfigError(
            f"model={name}: {repository} has no such model.{nearest_hint(name, known)} It has "
            f"{', '.join(known)}."
        )
    if (repository / ENCODER_NAME).is_dir():
        raise ConfigError(
            f"{repository} lets a backend of Triton run the graph, and has one version. Write "
            "another repository: bertender serve ARTIFACT --repository-only DIRECTORY."
        )
    return ModelFolder(repository / name)


@contextmanager
def held(repository: Path) -> Iterator[None]:
    """Lock a repository for a deployment; the lock is released when the process ends.

    Raises:
        BusyError: another process deploys into it.
    """
    descriptor = os.open(repository, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(
                f"another process deploys into {repository}. Wait until it ends."
            ) from None
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _writing(repository: Path, artifact: Artifact) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_be_written(repository, [artifact], error) from error


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
