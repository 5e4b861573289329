"""The files of an artifact in a model repository, and whether somebody overwrites them.

A repository that stays has copies: whoever writes into the artifact (`cp` does, where a file is
there) does not change what is loaded from the repository, today or after a restart. One that goes
with its server has links where there can be, as a model may be large and the folder of temporary
files in memory; the server has read them by the time that it is ready, and they are watched.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from bertender.core.artifact import Artifact
from bertender.core.card import CARD_NAME
from bertender.core.errors import DamagedArtifactError
from bertender.models.onnx_session import ONNX_DATA_NAME

Link = Callable[[Path, Path], None]
"""(source, target) -> makes a link, or raises OSError"""


def place_artifact(artifact: Artifact, out: Path, *, is_temporary: bool) -> str:
    """Put the card and the files that it names into a new folder; other files stay behind.

    They are read once, there, and their digests are compared with the card.

    Args:
        artifact: what to place.
        out: where to.
        is_temporary: the folder is loaded once, and goes while the artifact is still there, so
            that links will do.

    Returns:
        The stamp of the files, which they have as long as nobody touches them.

    Raises:
        DamagedArtifactError: the files differ from the card.
        OSError: they cannot be written.
    """
    out.mkdir(parents=True)
    shutil.copyfile(artifact.path / CARD_NAME, out / CARD_NAME)
    links = _links(artifact, is_temporary)
    for name in artifact.card.files:
        if (artifact.path / name).is_file():  # one that is missing is named by the check
            _place(artifact.path / name, out / name, links)
    stamp = stamp_of(out, artifact.card.files)
    try:
        Artifact(out, artifact.card).check_files()
    except DamagedArtifactError:
        artifact.check_files()  # so that its own path is named
        raise
    return stamp


def load_checked(directory: Path, stamp: str | None) -> Artifact:
    """Load an artifact whose digests are right: they were checked at this stamp, or are now.

    Raises:
        NotAnArtifactError, DamagedArtifactError: as `Artifact.load`.
    """
    artifact = Artifact.load(directory, verify=False)
    if stamp != stamp_of(directory, artifact.card.files):
        artifact.check_files()
    return artifact


def stamp_of(directory: Path, names: Iterable[str]) -> str:
    """Return what changes with any change of some files: their inodes, sizes and times.

    It takes no reading of them, and is another one for every copy.
    """
    states = [(name, _state(directory / name)) for name in sorted(names)]
    return hashlib.sha256(json.dumps(states).encode()).hexdigest()


class Watch:
    """Notices files of a repository that were overwritten since it was written."""

    def __init__(self, repository: Path) -> None:
        self.repository = repository
        cards = [*repository.glob(f"*/*/{CARD_NAME}"), *repository.glob(f"*/*/*/{CARD_NAME}")]
        self.artifacts = [Artifact.load(card.parent, verify=False) for card in cards]
        self.seen = [stamp_of(each.path, each.card.files) for each in self.artifacts]
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
                self.seen[number] = stamp_of(artifact.path, artifact.card.files)
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


def _state(path: Path) -> tuple[int, ...] | None:
    if not path.is_file():
        return None
    state = path.stat()
    return state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _links(artifact: Artifact, is_temporary: bool) -> list[Link]:
    """Return the kinds of links to try.

    ONNX Runtime maps a file of weights as it is on the disk: whoever writes into it changes what a
    running server predicts.
    """
    has_weights_apart = ONNX_DATA_NAME in artifact.card.files
    return [os.link, os.symlink] if is_temporary and not has_weights_apart else []


def _place(source: Path, target: Path, links: Sequence[Link]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    for link in links:
        with suppress(OSError):  # another file system, or one without links
            link(source.resolve(), target)
            return
    shutil.copyfile(source, target)
