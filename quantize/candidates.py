"""Schemes to try: in turn where none is named, and next where one was refused."""

from __future__ import annotations

import operator
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact
from bertender.core.card import read_card
from bertender.core.config import Config, Rule
from bertender.core.errors import ConfigError
from bertender.tasks.task import Task
from quantize.config import SchemeConfig
from quantize.schemes import DYNAMIC, FOUR_BIT_TABLES, MIXED, SCHEMES, SHARED, STATIC, Settings

__all__ = ["CANDIDATES", "Candidate", "candidates", "next_command"]

CANDIDATES: tuple[Settings, ...] = (FOUR_BIT_TABLES, DYNAMIC, STATIC, MIXED)
"""Schemes tried where none is named, until one passes; explicit settings go before these. The first
is the smallest, and as fast as the second: it passes only where the texts to choose by hardly
change their score."""

SAME: Callable[[Any, Any], bool] = operator.eq
COVERS: Mapping[str, Callable[[Any, Any], bool]] = {
    "max_drop": lambda tried, wanted: tried is not None,
    "epochs": operator.ge,
    "weight_bits": operator.ge,
}
"""Setting -> whether a row's value would be nothing new after the one that was tried."""


@dataclass(frozen=True)
class Candidate:
    """A row of CANDIDATES with the settings of a user."""

    config: SchemeConfig
    scheme: str
    skipped: str = ""
    """Why it is not tried; empty where it is."""


def candidates(config: SchemeConfig) -> Iterator[Candidate]:
    """Yield every row of CANDIDATES, those that would ignore an explicit setting as skipped."""
    for row in CANDIDATES:
        made = type(config).model_validate({**row, **_explicit(config)})
        try:
            made.check_rules()
        except ConfigError as error:
            yield Candidate(made, row["scheme"], str(error))
        else:
            yield Candidate(made, row["scheme"])


def next_command(scheme: str, config: SchemeConfig, source: Artifact, task: Task, out: Path) -> str:
    """Return what to do after a scheme was refused: a command, where there is one left."""
    for row in SCHEMES[scheme].then:
        path = _source_of(row["scheme"], source)
        if path is None or _was_tried(row, scheme, config):
            continue
        flags = (*_flags(_task_settings(path, task)), *_flags(_settings(row, config), config))
        words = [
            "bertender",
            "quantize",
            Artifact.load(path, verify=False).place,
            *flags,
            "--out",
            str(out),
        ]
        return f"Try next: {shlex.join(words)}"
    return "Keep the float model: no other scheme is likely to pass."


def _explicit(config: SchemeConfig) -> dict[str, Any]:
    names = sorted(config.model_fields_set - {"scheme"})
    return {name: getattr(config, name) for name in names}


def _settings(row: Settings, config: SchemeConfig) -> Settings:
    """Return a row with the explicit settings that its scheme reads and no rule refuses there."""
    read = SHARED | SCHEMES[row["scheme"]].reads
    explicit = {name: value for name, value in _explicit(config).items() if value is not None}
    carried = {name: value for name, value in explicit.items() if name in read}
    fixed = {**row, **{name: carried[name] for name in ("max_drop",) if name in carried}}
    for rule in config.rules.values():
        if _breaks(rule, type(config).model_validate({**carried, **fixed})):
            carried = {name: carried[name] for name in carried if name not in rule.settings}
    return {**carried, **fixed}


def _breaks(rule: Rule[Any], config: SchemeConfig) -> bool:
    try:
        rule.check(config)
    except ConfigError:
        return True
    return False


def _was_tried(row: Settings, scheme: str, config: SchemeConfig) -> bool:
    tried = {"scheme": scheme, **config.model_dump(exclude={"scheme"})}
    return all(COVERS.get(name, SAME)(tried[name], value) for name, value in row.items())


def _source_of(scheme: str, source: Artifact) -> Path | None:
    """Return the artifact that a scheme starts from: this one, or the source of its export."""
    if SCHEMES[scheme].source == source.card.kind:
        return source.path
    parent = source.card.parent
    path = None if parent is None else Path(os.path.normpath(source.path / parent.path))
    return path if path and path.is_dir() else None


def _task_settings(path: Path, task: Task) -> Settings:
    """Return the flags that name the task, unless the card of the artifact there names it."""
    recorded = read_card(path).task.source
    return {} if task.source == recorded else task.source


def _flags(settings: Settings, config: Config | None = None) -> Iterator[str]:
    """Yield settings as words; what is off is turned off where it is on by default."""
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if value is False:
            if config and type(config).model_fields[name].default is True:
                yield f"--no-{flag}"
        elif value is not None:
            yield f"--{flag}"
            if value is not True:
                yield str(value)
