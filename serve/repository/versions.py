"""The folder of a model in a repository: its versions, and which of them is served.

    MODEL/config.pbtxt     names the served version; a new file takes its place in one step
    MODEL/2/               the served version
    MODEL/1/               an earlier one

A version appears whole, by a rename, and nobody loads it before config.pbtxt names it. So a process
that is killed leaves the old version served or the new one, and what it had begun is removed by the
next deployment.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError, BusyError, ConfigError, nearest_hint
from bertender.core.files import replacing, replacing_directory
from bertender.text.tokenizer import stated_longest_input
from serve.config import ServeConfig
from serve.repository.config_pbtxt import (
    CONFIG_NAME,
    FIRST_VERSION,
    config_of_version,
    model_config,
    read_model_config,
    write_model_config,
)
from serve.repository.write import cannot_be_written, fill_version, is_repository, model_names
from serve.wire import CANDIDATE_SUFFIX, ENCODER_NAME

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as triton


@dataclass(frozen=True)
class Version:
    """A version of a model that has been added to its folder."""

    number: int
    config: triton.ModelConfig
    """That names it."""


@dataclass(frozen=True)
class ModelFolder:
    """A model of a repository."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def candidate(self) -> Path:
        """Folder of the model that may take its place."""
        return self.path.with_name(f"{self.name}{CANDIDATE_SUFFIX}")

    @property
    def config(self) -> triton.ModelConfig:
        """The configuration of the served version."""
        return read_model_config(self.path / CONFIG_NAME)

    @property
    def limits(self) -> Mapping[str, str]:
        """The parameters of the backend, by name."""
        return {name: each.string_value for name, each in self.config.parameters.items()}

    @property
    def versions(self) -> list[int]:
        """All versions that are there, the lowest first."""
        return sorted(int(each.name) for each in self.path.iterdir() if each.name.isdecimal())

    @property
    def served(self) -> int:
        """The version that config.pbtxt names; the latest in a repository of an earlier version."""
        versions = self.config.version_policy.specific.versions
        return max(versions or self.versions)

    def artifact(self, version: int) -> Artifact:
        """Return the artifact of a version, its digests unchecked."""
        return Artifact.load(self.path / str(version) / "artifact", verify=False)

    def sweep(self) -> None:
        """Remove what a killed deployment has left: drafts, a candidate, versions not yet named."""
        unnamed = [str(each) for each in self.versions if each > self.served]
        for left in (*self.path.glob(".*.draft-*"), *(self.path / each for each in unnamed)):
            _remove(left)
        for left in (*self.path.parent.glob(f".{self.candidate.name}.draft-*"), self.candidate):
            _remove(left)

    def write_candidate(self, artifact: Artifact, model: Path) -> None:
        """Write a model of an artifact with the settings of this one into the folder `model`."""
        with _writing(self.path.parent, artifact), replacing_directory(model) as draft:
            version = draft / str(FIRST_VERSION)
            stamp = fill_version(version, artifact, is_temporary=False)
            config = self._config_of(artifact, stamp, model.name, FIRST_VERSION)
            write_model_config(draft / CONFIG_NAME, config)

    def add(self, artifact: Artifact) -> Version:
        """Add a version, which nobody loads yet."""
        number = max(*self.versions, self.served) + 1
        folder = self.path / str(number)
        with _writing(self.path.parent, artifact), replacing_directory(folder) as draft:
            stamp = fill_version(draft, artifact, is_temporary=False)
        return Version(number, self._config_of(artifact, stamp, self.name, number))

    def select(self, config: triton.ModelConfig) -> None:
        """Replace config.pbtxt, which names the served version, in one step."""
        with replacing(self.path / CONFIG_NAME) as draft:
            write_model_config(draft, config)

    def remove(self, version: int) -> None:
        """Remove a version."""
        _remove(self.path / str(version))

    def prune(self, keep: int) -> list[int]:
        """Remove all but the newest `keep` of the earlier versions; return those that stay."""
        earlier = [each for each in self.versions if each < self.served]
        stay = earlier[-keep:] if keep else []
        for version in set(earlier) - set(stay):
            self.remove(version)
        return stay

    def _config_of(
        self, artifact: Artifact, stamp: str | None, name: str, version: int
    ) -> triton.ModelConfig:
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
        ArtifactError: it is not a repository of `bertender serve`.
        ConfigError: it has no such model, or a backend of Triton runs its graph.
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
    """Hold a repository for one deployment; the system gives it back however the process ends.

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
