"""Where students may start from: the teacher's own layers, encoders, and nothing at all."""

from __future__ import annotations

import logging
from pathlib import Path

from bertender.compression.candidates import Start
from bertender.compression.config import CompressConfig
from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError, HubUnreachableError, ModelError
from bertender.pipeline.stage import provided_by
from bertender.pipeline.stages import STAGES
from bertender.tasks.task import Task

__all__ = ["starts_of"]

logger = logging.getLogger(__name__)

OWN = "teacher"


def starts_of(teacher: Artifact, task: Task, config: CompressConfig) -> list[Start]:
    """Return the starts that a config allows; a default one that is not there is left out.

    Raises:
        ModelError, HubUnreachableError: one that the user named cannot be had.
        ConfigError: a method that the user named does not train on such a task.
    """
    depth, least = provided_by("distill.depth"), provided_by("prune.least_entries")
    own = str(teacher.path)
    starts = _own_starts(depth(own), least(own), config)
    for name in dict.fromkeys(config.students):
        try:
            made = _start(name, task)
        except (ConfigError, ModelError, HubUnreachableError) as error:
            if config.is_explicit("students"):
                raise
            logger.warning("no student starts from %s: %s", name, error)
            continue
        free = _free_name(made.name, [start.name for start in starts])
        entries = least(made.encoder or own)  # a kind without layers reads the teacher's tokens
        starts.append(made.model_copy(update={"name": free, "least_entries": entries}))
    return starts


def _own_starts(layers: int, least_entries: int, config: CompressConfig) -> list[Start]:
    """Return the teacher's own layers; of several methods, each alone, and the whole teacher."""
    own = Start(name=OWN, layers=layers, least_entries=least_entries)
    methods = [*dict.fromkeys(config.method)]
    if len(methods) < 2:
        return [own.model_copy(update={"method": next(iter(methods), None)})]
    shorter = {"most_layers": layers - 1}
    return [
        own.model_copy(update={"fewest_layers": layers}),  # which no method trains
        *(
            own.model_copy(update={"name": f"{OWN}-{method}", "method": method, **shorter})
            for method in methods
        ),
    ]


def _start(name: str, task: Task) -> Start:
    """Return the start of a name: of a method whose student has no layers, else an encoder."""
    if name not in provided_by("distill.without_layers")():
        return Start(name=Path(name).name, layers=provided_by("distill.depth")(name), encoder=name)
    distill = STAGES["distill"]
    distill.check(distill.config.parse({"method": name}), task)
    return Start(name=name, layers=0, method=name)


def _free_name(name: str, taken: list[str]) -> str:
    """Return a name that no start has: folders of one name may lie in different places."""
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))]
    return next(each for each in names if each not in taken)
