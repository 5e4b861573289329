"""Lineage: the artifact that an artifact was made from, and so on up to the first."""

from __future__ import annotations

from collections.abc import Iterator

from bertender.core.artifact import Artifact
from bertender.core.errors import ArtifactError

__all__ = ["lineage"]


def lineage(artifact: Artifact) -> Iterator[Artifact | str]:
    """Yield an artifact and its ancestors; one that is missing or was replaced, as words."""
    yield artifact
    while parent := artifact.card.parent:
        path = (artifact.path.resolve() / parent.path).resolve()
        try:
            artifact = Artifact.load(path)
        except (ArtifactError, OSError) as error:
            yield f"parent {parent.digest[:12]}: {error}"
            return
        if artifact.digest != parent.digest:
            yield f"parent {parent.digest[:12]}: {path} holds another artifact by now"
            return
        yield artifact
