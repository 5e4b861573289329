"""deploy: a candidate takes the place of the served model once it answers as when it was made."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import BertenderError, ConfigError, DeploymentError, ServingError
from bertender.core.golden import GoldenTexts, read_golden
from bertender.core.progress import progress_bar
from bertender.measure.golden_check import GoldenCheck, check_golden
from bertender.measure.runtimes import tolerance_in
from bertender.models.runtimes import DEFAULT_RUNTIME
from bertender.problems import PROBLEMS
from serve.deployment.asking import ask_golden, readable
from serve.deployment.config import DeployConfig
from serve.deployment.model_folder import ModelFolder, Version, held, model_folder
from serve.deployment.targets import Target, target_of
from serve.repository import check_servable

if TYPE_CHECKING:
    from tritonclient.grpc import model_config_pb2 as triton

__all__ = ["Deployment", "deploy"]

logger = logging.getLogger(__name__)


class Deployment(Record):
    """A model that has taken the place of another."""

    model: str
    version: int
    digest: str = Field(description="of the artifact")
    state: str = Field(
        description="serving, by the server at the url; or written, for a server that reads the "
        "repository"
    )
    golden: GoldenCheck
    repository: str
    earlier_versions: tuple[int, ...] = Field(description="that stay there, to go back to")


def deploy(artifact: Artifact, to: str, config: DeployConfig) -> Deployment:
    """Try an artifact as a candidate, and let it take the place of a served model.

    Args:
        artifact: an onnx classifier with golden texts; its digests are checked.
        to: address of a running `bertender serve` of this machine, or directory of a repository.
        config: which model, and what is allowed.

    Raises:
        ModelError, ArtifactError: the artifact cannot be served, or has no golden texts.
        ConfigError: the address, the token or the name of the model is wrong; or the artifact is
            of another task.
        BusyError: another process deploys there.
        DeploymentError: the candidate does not load, or does not answer as it should. The served
            model goes on, and nothing of the candidate is left; if the server has died meanwhile,
            the message says so, and which version is in its repository.
    """
    check_servable(artifact)
    golden = read_golden(artifact)
    target = target_of(to, config)
    folder = model_folder(target.repository, config.model)
    if not config.other_task:
        _check_same_task(folder.artifact(folder.served), artifact, folder.name)
    with held(target.repository), progress_bar(f"deploy {folder.name}", STEPS) as bar:
        target.prepare(folder)
        folder.sweep()
        bar.note("try the candidate")
        check = _tried(target, folder, artifact, golden, config)
        bar.advance()
        bar.note("replace the served model")
        version = _replaced(target, folder, artifact)
        bar.advance()
        return Deployment(
            model=folder.name,
            version=version.number,
            digest=artifact.digest,
            state=target.state,
            golden=check,
            repository=str(target.repository),
            earlier_versions=tuple(folder.prune(config.keep)),
        )


STEPS = 2


def _tried(
    target: Target,
    folder: ModelFolder,
    artifact: Artifact,
    golden: GoldenTexts,
    config: DeployConfig,
) -> GoldenCheck:
    """Return what the candidate says to its golden texts, which must be right."""
    problem, limits = PROBLEMS[artifact.card.task.problem_type], _limits(folder)
    texts = readable(golden, problem, limits, artifact.card.max_length)
    try:
        with target.candidate(folder, artifact) as place:
            predictions = ask_golden(place, texts, config.timeout_s)
    except (DeploymentError, ServingError) as error:
        raise _refused(target, folder, artifact, str(error)) from None
    tolerance = tolerance_in(limits.get("runtime", DEFAULT_RUNTIME), golden.tolerance)
    check = check_golden(golden.model_copy(update={"tolerance": tolerance}), predictions, problem)
    if check.failures:
        raise _refused(target, folder, artifact, "; ".join(check.failures))
    return check


def _replaced(target: Target, folder: ModelFolder, artifact: Artifact) -> Version:
    """Add the artifact as the served version; take it back where the server does not load it."""
    before, version = folder.config, folder.add(artifact)
    try:
        folder.select(version.config)
        target.activate(folder)
    except BaseException as error:
        _take_back(folder, before, version)
        if isinstance(error, BertenderError):
            raise _refused(target, folder, artifact, str(error)) from error
        raise
    _settle(target, folder)
    return version


def _take_back(folder: ModelFolder, before: triton.ModelConfig, version: Version) -> None:
    if folder.path.is_dir():  # a server that has ended may have taken its repository along
        folder.select(before)
        folder.remove(version.number)


def _settle(target: Target, folder: ModelFolder) -> None:
    try:
        target.settle(folder)
    except DeploymentError as error:  # new requests do not meet the old version any more
        logger.warning("%s", error)


def _refused(
    target: Target, folder: ModelFolder, artifact: Artifact, reason: str
) -> DeploymentError:
    """Return an error that says what is there now."""
    refusal = f"{artifact.path} does not take the place of {folder.name!r}"
    try:
        version = folder.served
    except OSError:
        return DeploymentError(
            f"{refusal}: {reason} Its repository {target.repository} is gone, as that of a server "
            "that has ended. Start `bertender serve` again."
        )
    if target.goes_on(folder):
        return DeploymentError(f"{refusal}, version {version}, which goes on: {reason}")
    return DeploymentError(
        f"{refusal}: {reason} The server does not respond with another version either. Its "
        f"repository {target.repository} has version {version}, with which it may be started "
        "again."
    )


def _limits(folder: ModelFolder) -> Mapping[str, str]:
    return {name: each.string_value for name, each in folder.config.parameters.items()}


def _check_same_task(served: Artifact, artifact: Artifact, model: str) -> None:
    """Raise ConfigError for an artifact of which clients of the served one expect nothing."""
    ours, theirs = served.card.task, artifact.card.task
    pairs = {
        "labels": (", ".join(ours.labels), ", ".join(theirs.labels)),
        "task": (ours.name, theirs.name),
        "problem type": (ours.problem_type, theirs.problem_type),
        "number of texts": (len(ours.text_columns), len(theirs.text_columns)),
    }
    differing = [f"{name} {new}, served {old}" for name, (old, new) in pairs.items() if old != new]
    if differing:
        raise ConfigError(
            f"{artifact.path} is not of the task of {model!r}: {'; '.join(differing)}. Its clients "
            "would get other answers than they ask for. Set --other-task if that is meant."
        )
