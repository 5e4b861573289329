"""Which schemes to try: in turn where none is named, and next where one was refused."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact
from bertender.core.errors import ConfigError
from bertender.tasks.task import Task
from quantize.config import SchemeConfig
from quantize.schemes import SCHEMES, SHARED

__all__ = ["CANDIDATES", "NEXT", "Candidate", "candidates", "next_command"]

Settings = Mapping[str, Any]

DYNAMIC: Settings = {"scheme": "dynamic"}
STATIC: Settings = {"scheme": "static", "calibrator": "mse"}
MIXED: Settings = {"scheme": "mixed", "base": "static", "max_drop": 0.5}

CANDIDATES: tuple[Settings, ...] = (DYNAMIC, STATIC, MIXED)
"""What is tried where no scheme is named, until one passes; explicit settings go before these."""

NEXT: Mapping[str, tuple[Settings, ...]] = {
    "dynamic": (STATIC,),
    "static": (STATIC, MIXED),
    "mixed": (MIXED, {"scheme": "qat"}),
    "four-bit": ({"scheme": "four-bit", "max_drop": 0.5}, DYNAMIC),
    "qat": ({"scheme": "qat", "epochs": 3}, {"scheme": "qat", "epochs": 10}),
}
"""Scheme that was refused -> what to try then: the first that was not tried just now."""


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
    for row in NEXT[scheme]:
        path = _source_of(row["scheme"], source)
        if path is None or _was_tried(row, scheme, config):
            continue
        read = SHARED | SCHEMES[row["scheme"]].reads
        carried = {name: value for name, value in _explicit(config).items() if name in read}
        settings = {**_task_settings(source, task), **carried, **row}
        if "max_drop" in carried:
            settings["max_drop"] = carried["max_drop"]
        words = ["bertender", "quantize", str(path), *_flags(settings), "--out", str(out)]
        return f"Try next: {shlex.join(words)}"
    return "Keep the float model: no other scheme is likely to pass."


def _explicit(config: SchemeConfig) -> dict[str, Any]:
    names = sorted(config.model_fields_set - {"scheme"})
    return {name: getattr(config, name) for name in names}


def _was_tried(row: Settings, scheme: str, config: SchemeConfig) -> bool:
    tried = {"scheme": scheme, **config.model_dump(exclude={"scheme"})}
    return all(
        tried[name] is not None if name == "max_drop" else tried[name] == value
        for name, value in row.items()
    )


def _source_of(scheme: str, source: Artifact) -> Path | None:
    """Return the artifact that a scheme starts from: this one, or what it was exported from."""
    if SCHEMES[scheme].source == source.card.kind:
        return source.path
    parent = source.card.parent
    path = None if parent is None else Path(os.path.normpath(source.path / parent.path))
    return path if path and path.is_dir() else None


def _task_settings(source: Artifact, task: Task) -> Settings:
    """Return the flags that name the task, unless the artifact names it."""
    return {} if task.source == source.card.task.source else task.source


def _flags(settings: Settings) -> Iterator[str]:
    for name, value in settings.items():
        if value is None or value is False:
            continue
        yield f"--{name.replace('_', '-')}"
        if value is not True:
            yield str(value)
