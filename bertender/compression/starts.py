"""Where students may start from: the teacher's own layers, and encoders."""

from __future__ import annotations

import logging
from pathlib import Path

from bertender.compression.candidates import Start
from bertender.compression.config import CompressConfig
from bertender.core.artifact import Artifact
from bertender.core.errors import HubUnreachableError, ModelError
from bertender.pipeline.stage import provided_by

__all__ = ["starts_of"]

logger = logging.getLogger(__name__)

OWN = "teacher"


def starts_of(teacher: Artifact, config: CompressConfig) -> list[Start]:
    """Return the starts that a config allows; a default one that is not there is left out.

    Raises:
        ModelError, HubUnreachableError: one that the user named cannot be had.
    """
    depth_of = provided_by("distill.depth")
    starts = [Start(name=OWN, layers=depth_of(str(teacher.path)))]
    for encoder in dict.fromkeys(config.students):
        try:
            layers = depth_of(encoder)
        except (ModelError, HubUnreachableError) as error:
            if config.is_explicit("students"):
                raise
            logger.warning("no student starts from %s: %s", encoder, error)
            continue
        name = _free_name(Path(encoder).name, [start.name for start in starts])
        starts.append(Start(name=name, layers=layers, encoder=encoder))
    return starts


def _free_name(name: str, taken: list[str]) -> str:
    """Return a name that no start has: folders of one name may lie in different places."""
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))]
    return next(each for each in names if each not in taken)
