"""Pushing an artifact to a hub: its files, `artifact.json` and a model card, in one commit.

The pushed repository can be opened by name and is the same artifact: the digests of its files are
those on the card. Paths of this machine are shortened to names first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, ValidationError

from bertender.core.artifact import GOLDEN_NAME, Artifact, shown_names
from bertender.core.card import CARD_NAME, Card
from bertender.core.config import Record
from bertender.core.errors import ConfigError, HubRefusedError, HubUnreachableError
from bertender.publishing.model_card import (
    README_NAME,
    ModelCardConfig,
    model_card,
    stated_places,
)

if TYPE_CHECKING:  # settings are read without these
    from huggingface_hub import HfApi

BESIDE = frozenset({README_NAME, ".gitattributes"})
"""Files that any model's repository may have."""
TEXT_FILES = (GOLDEN_NAME, "texts.json")
"""Files with texts of the task, for checks of a graph or of a browser bundle."""
TRANSPORTS = ("httpcore", "httpx", "requests", "urllib3")
"""Prefixes of packages whose errors mean that nobody responds."""
UNAUTHORIZED, FORBIDDEN = 401, 403
HOW_TO_LOG_IN = (
    "Make one with the right to write at https://huggingface.co/settings/tokens, and give it by "
    "HF_TOKEN, by --token-file FILE, or once by `hf auth login`."
)


class PushConfig(ModelCardConfig):
    """Settings of `push`."""

    panel: ClassVar[str] = "Repository"

    private: bool = Field(False, description="make a new repository private")
    token_file: Path | None = Field(
        None,
        description="file with a token of the hub that may write; by default HF_TOKEN, or that of "
        "`hf auth login`",
    )
    publish_texts: bool = Field(
        False,
        description="put texts of the task into a public repository: stored ones (--golden-texts), "
        "and why rows were left out (--skip-bad-rows)",
    )


class Pushed(Record):
    """An artifact on a hub."""

    repository: str
    url: str = Field(description="of the commit")
    commit: str
    digest: str = Field(description="of the artifact, here and there")
    private: bool
    files: tuple[str, ...] = Field(description="of the commit")
    removed: tuple[str, ...] = Field(description="files of the artifact that was there before")


def push(artifact: Artifact, repository: str, config: PushConfig, force: bool = False) -> Pushed:
    """Push an artifact, whose digests are checked, to a repository on a hub.

    A README.md in the artifact's folder is pushed unchanged; without one, it is generated.

    Args:
        artifact: artifact to push.
        repository: OWNER/NAME; it is created if it is missing.
        config: settings of `push`.
        force: replace a model that no push has put into the repository.

    Raises:
        ConfigError: the name is not valid; or golden texts, or a repository meant to be private,
            would be public.
        DamagedArtifactError: files are missing or changed.
        HubRefusedError: there is no token with write access; or the repository has another model.
        HubUnreachableError: no hub responds.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import RepositoryNotFoundError

    _check_name(repository)
    token = _token(config.token_file)
    artifact.check_files()
    readme = _readme(artifact, config, repository)
    hub = HfApi(token=token)
    with _explained(repository):
        try:
            there = hub.model_info(repository)
        except RepositoryNotFoundError:
            there = None
        is_private = config.private if there is None else bool(there.private)
        _check_public(artifact, repository, config, is_private)
        names = [] if there is None else [each.rfilename for each in there.siblings or ()]
        before = _files_before(hub, repository, names)
        own = {*artifact.card.files, CARD_NAME}
        if not force and (others := sorted({*names} - BESIDE - before)):
            raise HubRefusedError(
                f"{repository} holds files that no push of bertender has put there: "
                f"{shown_names(others)}. Give --force to put the artifact among them, or another "
                "name."
            )
        card = _published(artifact.card, shows_texts=is_private or config.publish_texts)
        if there is None:
            hub.create_repo(repository, private=config.private)
        removed = sorted((before & {*names}) - own)
        done = hub.create_commit(
            repository,
            [
                *(CommitOperationAdd(name, artifact.path / name) for name in artifact.card.files),
                CommitOperationAdd(CARD_NAME, card.encode()),
                CommitOperationAdd(README_NAME, readme),
                *(CommitOperationDelete(name) for name in removed),
            ],
            commit_message=f"{artifact.name}: {artifact.card.stage}, {artifact.card.precision}",
        )
    return Pushed(
        repository=repository,
        url=str(done.commit_url),
        commit=str(done.oid),
        digest=artifact.digest,
        private=is_private,
        files=tuple(sorted({*own, README_NAME})),
        removed=tuple(removed),
    )


def _check_name(repository: str) -> None:
    """Raise ConfigError for a name that hubs do not allow."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repository)
        reason = None if repository.count("/") == 1 else "it has no owner"
    except HFValidationError as error:
        reason = str(error).rstrip(".")
    if reason:
        raise ConfigError(
            f"{repository!r} is no name of a repository: {reason}. Give OWNER/NAME, as in "
            "anna/reviews-int8, with letters, digits, '-', '_' and '.'."
        )


def _readme(artifact: Artifact, config: PushConfig, repository: str) -> bytes:
    """Return the README.md in an artifact's folder, or else a generated one.

    Raises:
        ConfigError: settings of a card are set, but have no effect.
    """
    own = artifact.path / README_NAME
    if not own.is_file():
        return model_card(artifact, config, repository).encode()
    if unread := [name for name in ModelCardConfig.model_fields if config.is_explicit(name)]:
        raise ConfigError(
            f"{config.as_set(unread)}: {own} is pushed as it is. Leave it out, or remove the file "
            "and one is made."
        )
    return own.read_bytes()


def _token(file: Path | None) -> str:
    """Return the token in a file, or the one of the hub's own library.

    Raises:
        ConfigError: the file cannot be read, or has no token; its content is never shown.
        HubRefusedError: there is no token.
        HubUnreachableError: the hub's library is set to offline.
    """
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise HubUnreachableError(
            "HF_HUB_OFFLINE is set, so that nothing is sent to a hub. Unset it, and run the same "
            "command again."
        )
    if file is None:
        if token := get_token():
            return token
        raise HubRefusedError(f"no token of a hub is set. {HOW_TO_LOG_IN}")
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"token_file={file}: {reason}. {HOW_TO_LOG_IN}") from None
    if not text or len(text.split()) > 1 or not text.isascii():
        raise ConfigError(
            f"token_file={file}: no token in it. It holds one line with the token alone. "
            f"{HOW_TO_LOG_IN}"
        )
    return text


def _check_public(
    artifact: Artifact, repository: str, config: PushConfig, is_private: bool
) -> None:
    """Raise ConfigError if texts, or the whole repository, would be public by mistake."""
    if config.private and not is_private:
        raise ConfigError(
            f"private: {repository} is there already, and is public. Make it private in its "
            "settings on the hub, or give another name."
        )
    holding = [
        name
        for name in TEXT_FILES
        if name in artifact.card.files and _has_texts(artifact.path / name)
    ]
    if is_private or config.publish_texts or not holding:
        return
    raise ConfigError(
        f"{artifact.path / holding[0]} holds texts of task {artifact.card.task.name!r}, and "
        f"{repository} would show them to everybody. Give --publish-texts if they may be public, "
        f"--private, or make the artifact again with `bertender {artifact.card.stage} "
        "--golden-texts 0`."
    )


def _has_texts(file: Path) -> bool:
    """Return whether a file has texts; the page of a browser bundle reads one without rows too."""
    rows: object = json.loads(file.read_text(encoding="utf-8")).get("rows")
    return rows != []


def _files_before(hub: HfApi, repository: str, names: list[str]) -> set[str]:
    """Return the artifact files in a repository from an earlier push."""
    if CARD_NAME not in names:
        return set()
    path = hub.hf_hub_download(repository, CARD_NAME)
    try:
        card = Card.model_validate_json(Path(path).read_text(encoding="utf-8"))
    except ValidationError:  # from another version, or another author
        return {CARD_NAME}
    return {CARD_NAME, *card.files}


def _published(card: Card, *, shows_texts: bool) -> str:
    """Return the card to push, without paths of this machine.

    Args:
        card: card of the artifact.
        shows_texts: texts of the task may be shown, as in the reasons of rows that were left out.
    """
    task = card.task.model_dump(mode="json")
    if task["left_out"] and not shows_texts:
        task["left_out"]["first"] = []
    shown = {name: stated_places(task[name]) for name in ("source", "left_out")}
    record = card.task.model_validate({**task, **shown})
    update: dict[str, Any] = {"task": record, "config": stated_places(card.config)}
    findings: dict[str, Any] = {}
    if file := card.findings.teacher_file:
        findings["teacher_file"] = file.model_copy(update={"path": stated_places(file.path)})
    if own := card.findings.calibration:
        findings["calibration"] = own.model_copy(update={"source": stated_places(own.source)})
    update["findings"] = card.findings.model_copy(update=findings)
    if card.parent is not None:
        beside = f"../{Path(card.parent.path).name}"
        update["parent"] = card.parent.model_copy(update={"path": beside})
    return card.model_copy(update=update).model_dump_json(indent=2) + "\n"


@contextmanager
def _explained(repository: str) -> Iterator[None]:
    """Turn errors of the hub and the network into those of bertender, with the next step."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except HfHubHTTPError as error:
        status = None if error.response is None else error.response.status_code
        said = str(error).strip().splitlines()[-1] if str(error).strip() else "no reason is given"
        if status == UNAUTHORIZED:
            raise HubRefusedError(f"the hub does not accept the token. {HOW_TO_LOG_IN}") from None
        if status == FORBIDDEN:
            owner = repository.partition("/")[0]
            raise HubRefusedError(
                f"the token has no right to write to {repository}: {said} Is {owner!r} you, or an "
                f"organisation that you may write to? {HOW_TO_LOG_IN}"
            ) from None
        raise HubRefusedError(
            f"the hub refuses what was sent to {repository} (status {status}): {said} Nothing was "
            "committed; run the same command again once that is mended."
        ) from None
    except Exception as error:  # requests and httpx share no base class
        # the error of an upload thread names the file, with the real error as its cause
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        is_transport = type(cause).__module__.startswith(TRANSPORTS)
        if is_transport or isinstance(cause, ConnectionError | RuntimeError):
            raise HubUnreachableError(
                f"no hub responds at {constants.ENDPOINT}, or it broke off: "
                f"{type(cause).__name__}. Check the network, the proxy and HF_ENDPOINT, and run "
                "the same command again; nothing was committed."
            ) from None
        raise
