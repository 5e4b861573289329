"""Deployment: a candidate replaces the served model if its predictions are still those of its
creation."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from bertender.core.artifact import GOLDEN_NAME, Artifact, GoldenText, GoldenTexts, read_golden
from bertender.core.config import Record
from bertender.core.errors import (
    ArtifactError,
    BertenderError,
    DeploymentError,
    ServingError,
)
from bertender.core.progress import progress_bar
from bertender.gate.golden import GoldenCheck, GoldenPrediction, check_golden
from bertender.metrics.metric import FloatArray
from bertender.models.runtimes import tolerance_in
from bertender.problems import problem_of_task
from bertender.problems.problem import Problem
from bertender.text.tokenizer import open_tokenizer, stated_longest_input
from serve.client.endpoint import Endpoint
from serve.config import BackendParameters, DeployConfig
from serve.repository import check_servable
from serve.server.targets import ModelFolder, Place, Target, held, model_folder, target_of

logger = logging.getLogger(__name__)

SAME_VECTORS = 0.95
"""Mean cosine of the same texts, above which a search finds much the same: between float and 8 bits
it is above 0.99."""
SMALLEST_NORM = 1e-12


class Deployment(Record):
    """A model that has replaced another."""

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
    """Test an artifact as a candidate, and then replace a served model by it.

    Args:
        artifact: an onnx classifier with golden texts; its digests are checked.
        to: address of a running `bertender serve` on this machine, or directory of a repository.
        config: name of the model, and limits.

    Raises:
        ModelError, ArtifactError: the artifact cannot be served, or has no golden texts.
        ConfigError: the address, the token or the name of the model is wrong.
        BusyError: another process deploys there.
        DeploymentError: the artifact is for another task, does not load, or its predictions are
            wrong. The served model continues, and nothing of the candidate is left.
        ServingError: the server has died meanwhile; the message says which version is in its
            repository.
    """
    check_servable(artifact)
    golden = read_golden(artifact)
    target = target_of(to, config)
    folder = model_folder(target.repository, config.model)
    if not config.other_task:
        served = folder.artifact(folder.served)
        _check_same_task(served, artifact, folder.name)
        _warn_of_another_name(served, artifact)
        _warn_of_other_vectors(served, artifact)
    _warn_of_shorter_input(folder, artifact)
    with held(target.repository), progress_bar(f"deploy {folder.name}", total=2) as bar:
        target.prepare(folder)
        folder.sweep()
        bar.note("try the candidate")
        check = _try_candidate(target, folder, artifact, golden, config)
        bar.advance()
        bar.note("replace the served model")
        version = _replace(target, folder, artifact)
        bar.advance()
        return Deployment(
            model=folder.name,
            version=version,
            digest=artifact.digest,
            state=target.state,
            golden=check,
            repository=str(target.repository),
            earlier_versions=tuple(folder.prune(config.keep)),
        )


def _check_same_task(served: Artifact, artifact: Artifact, model: str) -> None:
    """Raise ConfigError for an artifact that clients of the served model do not expect."""
    ours, theirs = served.card.task, artifact.card.task
    pairs = {
        "labels": (", ".join(ours.labels), ", ".join(theirs.labels)),
        "problem type": (ours.problem_type, theirs.problem_type),
        "number of texts": (len(ours.text_columns), len(theirs.text_columns)),
    }
    lengths = _vector_length(served), _vector_length(artifact)
    if None not in lengths:  # clients keep vectors, and compare new ones with them
        pairs["length of a vector"] = lengths
    differing = [f"{name} {new}, served {old}" for name, (old, new) in pairs.items() if old != new]
    if differing:
        raise DeploymentError(
            f"{artifact.place} is not of the task of {model!r}: {'; '.join(differing)}. Its "
            "clients would get other answers than they ask for. Set --other-task if that is meant."
        )


def _vectors(artifact: Artifact) -> Mapping[tuple[str, ...], FloatArray]:
    """Return the vectors of an artifact's golden texts, by text; none without vectors or golden
    texts."""
    if not problem_of_task(artifact.card.task).gives_vectors:
        return {}
    try:
        golden = read_golden(artifact) if GOLDEN_NAME in artifact.card.files else None
    except ArtifactError:  # a damaged served version can be replaced
        return {}
    return (
        {} if golden is None else {each.example: np.array(each.logits[0]) for each in golden.texts}
    )


def _vector_length(artifact: Artifact) -> int | None:
    """Return the length of an artifact's vectors; None if it is unknown."""
    return next((len(vector) for vector in _vectors(artifact).values()), None)


def _warn_of_another_name(served: Artifact, artifact: Artifact) -> None:
    """Log a warning for an artifact whose task has another name: it may be the same task, learned
    from a newer file."""
    before, now = served.card.task.name, artifact.card.task.name
    if before != now:
        logger.warning("%s learned %r, and the served version %r", artifact.place, now, before)


def _warn_of_other_vectors(served: Artifact, artifact: Artifact) -> None:
    """Log a warning for an artifact whose vectors cannot be compared with those of the served
    version, which clients may keep in an index."""
    before, now = _vectors(served), _vectors(artifact)
    if not now:
        return
    both = [(before[text], now[text]) for text in now if text in before]
    if not both:
        found = "they have no golden text in common, by which they could be compared"
    elif (cosine := _mean_cosine(both)) < SAME_VECTORS:
        found = f"of {len(both)} golden texts, the mean cosine is {cosine:.2f}"
    else:
        return
    logger.warning(
        "the vectors of %s may not fit those of the served version: %s. Compute stored ones again",
        *(artifact.place, found),
    )


def _mean_cosine(pairs: Sequence[tuple[FloatArray, FloatArray]]) -> float:
    first, second = map(np.stack, zip(*pairs, strict=True))
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return float(np.mean((first * second).sum(axis=1) / np.maximum(norms, SMALLEST_NORM)))


def _warn_of_shorter_input(folder: ModelFolder, artifact: Artifact) -> None:
    """Log a warning for an artifact that reads fewer tokens than the served one: no golden text is
    longer than what it reads."""
    now = folder.limits.most_tokens
    then = folder.limits.max_length or stated_longest_input(artifact.path)
    if now is None or then is None or then >= now:
        return
    encoder = problem_of_task(artifact.card.task).encoder(open_tokenizer(artifact.path))
    if encoder.cuts:  # others read longer texts in windows
        logger.warning(
            "%s reads %d tokens of a text, and the served version %d: texts between, which are "
            "answered now, will be refused unless they are sent with truncate=true. Otherwise "
            "train it with --max-length %d",
            *(artifact.place, then, now, now),
        )


def _try_candidate(
    target: Target,
    folder: ModelFolder,
    artifact: Artifact,
    golden: GoldenTexts,
    config: DeployConfig,
) -> GoldenCheck:
    """Return the candidate's predictions for its golden texts, which must be right."""
    problem, limits = problem_of_task(artifact.card.task), folder.limits
    texts = readable(golden, problem, limits, artifact.card.max_length)
    try:
        with target.candidate(folder, artifact) as place:
            asked = place, texts, problem
            predictions = ask_golden(*asked, config.timeout_s, target.check_address)
    except (DeploymentError, ServingError) as error:
        raise _refused(target, folder, artifact, str(error)) from None
    tolerance = tolerance_in(limits.runtime, golden.tolerance)
    own = golden.model_copy(update={"tolerance": tolerance})
    check = check_golden(own, predictions, problem, artifact.card.task.labels)
    if check.failures:
        raise _refused(target, folder, artifact, "; ".join(check.failures))
    return check


def _replace(target: Target, folder: ModelFolder, artifact: Artifact) -> int:
    """Add the artifact as the served version, and return its number; remove it if the server does
    not load it."""
    before, version = folder.config, folder.add(artifact)
    try:
        folder.select(version.config)
        target.activate(folder)
    except BaseException as error:
        if folder.path.is_dir():  # a server that has ended may have removed its repository
            folder.select(before)
            folder.remove(version.number)
        if isinstance(error, BertenderError):
            raise _refused(target, folder, artifact, str(error)) from error
        raise
    try:
        target.settle(folder)
    except (DeploymentError, ServingError) as error:  # new requests reach the new version alone
        logger.warning("%s", error)
    return version.number


def _refused(
    target: Target, folder: ModelFolder, artifact: Artifact, reason: str
) -> DeploymentError | ServingError:
    """Return an error that describes the present state: a ServingError where the server has
    gone."""
    refusal = f"{artifact.place} does not take the place of {folder.name!r}"
    try:
        version = folder.served
    except OSError:
        return ServingError(
            f"{refusal}: {reason} Its repository {target.repository} is gone, as that of a server "
            "that has ended. Start `bertender serve` again."
        )
    if target.is_answered(folder):
        return DeploymentError(f"{refusal}, version {version}, which goes on: {reason}")
    return ServingError(
        f"{refusal}: {reason} The server does not respond with another version either. Its "
        f"repository {target.repository} has version {version}, with which it may be started "
        "again."
    )


def readable(
    golden: GoldenTexts,
    problem: Problem[Any],
    limits: BackendParameters,
    longest: int | None = None,
) -> dict[int, GoldenText]:
    """Return the golden texts that a server with these limits reads completely, as before.

    Args:
        golden: golden texts of an artifact.
        problem: the artifact's problem type.
        limits: parameters of the backend; `max_length` truncates texts that were whole when stored,
            and texts of more than `max_text_bytes` are refused, each of a pair separately.
        longest: tokens that the artifact reads of a text, if its card has them; a server that reads
            more may see more of texts with this length.

    Returns:
        Index of a text among all of them -> text.

    Raises:
        DeploymentError: there are no such texts.
    """
    most_tokens = limits.max_length or 10**9
    if limits.max_length and longest is not None and longest < most_tokens:
        most_tokens = longest - 1
    texts = {}
    for row, text in enumerate(golden.texts):
        sizes_bytes = [len(each.encode()) for each in problem.to_texts(text.example)]
        if text.tokens <= most_tokens and max(sizes_bytes) <= limits.max_text_bytes:
            texts[row] = text
    if not texts:
        raise DeploymentError(
            f"no golden text is within the server's limits (max_length={limits.max_length}, "
            f"max_text_bytes={limits.max_text_bytes}), so that nothing would be compared. Serve "
            "with larger ones."
        )
    return texts


NO_RETRY = 0
"""A retry would send the text without checking again who listens."""


def ask_golden(
    place: Place,
    texts: Mapping[int, GoldenText],
    problem: Problem[Any],
    timeout_s: float,
    check_address: Callable[[], None],
) -> dict[int, GoldenPrediction]:
    """Send golden texts to a model, one per request; return its predictions by index.

    Args:
        place: the model.
        texts: texts by their index among all of them.
        problem: kind of problem of the artifact: a server does not name the labels of several
            heads.
        timeout_s: longest wait for a prediction.
        check_address: called before each text; raises an error if another process may listen there.

    Raises:
        DeploymentError: the model does not respond, or another process may listen at its address;
            the message has the index of the text.
        ServingError: the model does not describe its inputs.
    """
    predictions = {}
    opened = Endpoint(
        place.url,
        model=place.model,
        batch_size=1,
        timeout_s=timeout_s,
        retries=NO_RETRY,
        access=place.access,
    )
    with opened as endpoint:
        for row, text in texts.items():
            try:
                check_address()
                (classification,) = endpoint.classify([text.example])
                logits = problem.logits_at(text.places, classification.logits)
            except (BertenderError, IndexError) as error:
                raise DeploymentError(f"golden text {row + 1} gets no answer: {error}") from None
            predictions[row] = GoldenPrediction(classification.label, logits)
    return predictions
