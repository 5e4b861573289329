"""The commands that would make artifacts again, according to their cards."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from bertender.comparison.records import Ancestor, CompareConfig, Comparison
from bertender.core.artifact import IMPORT_STAGE
from bertender.core.config import Config
from bertender.recipes.stages import STAGES
from bertender.tasks.task import TaskConfig


def making(lineage: Sequence[Ancestor]) -> list[tuple[Ancestor, str]]:
    """Return the artifacts of a lineage, the oldest first, each with the command that makes it;
    empty if the command is not known."""
    by_digest = {each.digest: each for each in lineage if not each.missing}
    steps = [(each, command_of(each, by_digest.get(each.parent or ""))) for each in lineage]
    return steps[::-1]


def command_of(made: Ancestor, parent: Ancestor | None) -> str:
    """Return the command that makes an artifact from its parent; empty if it is not known.

    A calibrated artifact has two, one per line: the second calibrates the first one's output.
    """
    if made.calibrated_by is None:
        return _command_of(made, parent, made.place)
    plain = f"{made.place}-uncalibrated"
    if not (first := _command_of(made, parent, plain)):
        return ""
    words = ["bertender", "calibrate", plain, "--method", made.calibrated_by]
    if any(made.source.get(name) != value for name, value in made.calibrated_on.items()):
        words += flags(TaskConfig, made.calibrated_on)
    return f"{first}\n{shlex.join([*words, '--out', made.place])}"


def _command_of(made: Ancestor, parent: Ancestor | None, place: str) -> str:
    out = ["--out", place]
    if made.missing:
        return ""
    if made.stage == IMPORT_STAGE:
        return shlex.join(["bertender", "import", str(made.config.get("source", "")), *out])
    if made.stage not in STAGES or (made.parent is not None and parent is None):
        return ""
    stage = STAGES[made.stage]
    words = ["bertender", made.stage]
    own: dict[str, Any] = dict(made.config)
    if stage.source and parent is not None:
        words += (
            [parent.place] if stage.source == "artifact" else [f"--{stage.source}", parent.place]
        )
        own.pop(stage.source, None)
    if stage.needs_task and (parent is None or parent.source != made.source):
        words += flags(TaskConfig, made.source)
    return shlex.join([*words, *flags(stage.config, own), *out])


def comparing(comparison: Comparison) -> str:
    """Return the command that measures a comparison."""
    by_name = {row.name: row.lineage[0].place for row in comparison.rows}
    pairs = [row.cascade for row in comparison.rows if row.cascade]
    places = dict.fromkeys(by_name.values())
    cascades = [
        word for pair in pairs for word in ("--cascade", by_name[pair.small], by_name[pair.strong])
    ]
    conditions = comparison.circumstances
    # otherwise the task is that of the first model that records one
    known = comparison.rows[0].lineage[0].source
    task = {name: value for name, value in conditions.source.items() if known.get(name) != value}
    config = to_jsonable_python(conditions.config)
    own = [*flags(TaskConfig, task), *flags(CompareConfig, config)]
    return shlex.join(["bertender", "compare", *places, *cascades, *own])


def flags(config: type[Config], values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the flags of settings with other values than their defaults."""
    for name, field in config.model_fields.items():
        default = to_jsonable_python(field.get_default(call_default_factory=True))
        value = values.get(name)
        if value is None or value == default or isinstance(value, Mapping):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            yield flag if value else f"--no-{flag[2:]}"
        else:
            yield flag
            yield ",".join(map(str, value)) if isinstance(value, list) else str(value)
