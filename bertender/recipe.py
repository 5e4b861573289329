"""Recipes: named steps, each from earlier ones; what is built already is not built again.

A step is skipped when its stamp says that the same stage, config, inputs, data and code have
made the output that is there. A step that was killed has left no stamp and no half-written
output; a training step resumes from its last checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from bertender.core.artifact import Artifact, library_versions, sha256_of
from bertender.core.cache import replacing
from bertender.core.config import Config, Record
from bertender.core.errors import ArtifactError, ConfigError, UnknownNameError, nearest_hint
from bertender.steps import STEPS, StepKind
from bertender.tasks.registry import load_task
from bertender.tasks.task import Task, TaskConfig

__all__ = ["Recipe", "Step", "StepOutcome", "load_recipe", "recipe_names", "run_recipe"]

logger = logging.getLogger(__name__)

TASK_SETTINGS = "task"
"""The name that `--set` uses for the recipe's task; no step may have it."""


class Step(Record):
    """One step of a recipe."""

    name: str
    stage: str
    sources: tuple[str, ...] = Field((), alias="from")
    settings: dict[str, Any] = Field(default_factory=dict, alias="with")


class Recipe(Record):
    """What `bertender run` runs."""

    name: str
    summary: str
    task: dict[str, Any]
    steps: tuple[Step, ...]
    next: tuple[str, ...] = Field((), description="commands to show at the end")

    def with_settings(self, changes: Sequence[str]) -> Recipe:
        """Return the recipe with `step.key=value` settings changed (`task.key=value` for the task).

        Raises:
            ConfigError: a change is not of that form, or names no step.
        """
        values = self.model_dump(by_alias=True)
        settings = {step["name"]: step["with"] for step in values["steps"]}
        settings[TASK_SETTINGS] = values["task"]
        for change in changes:
            place, equals, value = change.partition("=")
            step, dot, key = place.partition(".")
            if not (equals and dot and key):
                raise ConfigError(f"--set {change!r}: write it as step.key=value.")
            if step not in settings:
                raise ConfigError(
                    f"--set {change!r}: no step {step!r} in recipe {self.name!r}."
                    f"{nearest_hint(step, settings)} Steps: {', '.join(settings)}."
                )
            settings[step][key] = yaml.safe_load(value)
        return Recipe.model_validate(values)


@dataclass(frozen=True)
class StepOutcome:
    """What became of a step."""

    step: Step
    position: int
    output: Path
    reused: bool
    seconds: float
    result: dict[str, Any]


def recipe_names() -> dict[str, str]:
    """Return the embedded recipes, name and summary."""
    return {name: load_recipe(name).summary for name in sorted(_embedded())}


def load_recipe(name: str) -> Recipe:
    """Read an embedded recipe by name, or a YAML file by path.

    Raises:
        UnknownNameError: neither.
        ConfigError: the file is not a recipe; every problem is named.
    """
    path = Path(name)
    if path.suffix in (".yaml", ".yml") and path.is_file():
        return parse_recipe(path.stem, path.read_text(encoding="utf-8"))
    embedded = _embedded()
    if name not in embedded:
        raise UnknownNameError("recipe", name, (*embedded, "or a path to your own .yaml file"))
    return parse_recipe(name, embedded[name])


def parse_recipe(name: str, text: str) -> Recipe:
    """Build a recipe from YAML and check that its steps fit together."""
    try:
        recipe = Recipe.model_validate({"name": name, **yaml.safe_load(text)})
    except (ValidationError, yaml.YAMLError, TypeError) as error:
        raise ConfigError(f"recipe {name!r} cannot be read: {error}") from None
    known: set[str] = set()
    for step in recipe.steps:
        if step.stage not in STEPS:
            raise UnknownNameError(f"stage of step {step.name!r}", step.stage, STEPS)
        for source in step.sources:
            if source not in known:
                raise UnknownNameError(f"step before {step.name!r}", source, known)
        if step.name in known or step.name == TASK_SETTINGS:
            raise ConfigError(f"recipe {name!r}: {step.name!r} is not free to name a step.")
        known.add(step.name)
    return recipe


def run_recipe(
    recipe: Recipe,
    out: Path,
    *,
    fresh: bool = False,
    at_step: Callable[[Step, int], None] = lambda step, position: None,
) -> Iterator[StepOutcome]:
    """Run the steps in order, yielding what became of each.

    Args:
        recipe: what to run.
        out: directory that gets an artifact, or a JSON file, for each step.
        fresh: build every step anew.
        at_step: called before each step.
    """
    configs = [STEPS[step.stage].config.parse(step.settings) for step in recipe.steps]
    task = load_task(TaskConfig.parse(recipe.task))
    done: dict[str, Path] = {}
    for position, (step, config) in enumerate(zip(recipe.steps, configs, strict=True)):
        at_step(step, position)
        started = time.monotonic()
        sources = [Artifact.load(done[name]) for name in step.sources]
        kind = STEPS[step.stage]
        output = out / (step.name + kind.suffix)
        stamp = _Stamp(out / ".stamps" / f"{step.name}.json", _key(step, config, sources, task))
        reused = not fresh and kind.reusable and stamp.holds_for(output)
        if not reused:
            kind.run(sources, task, config, output)
            stamp.write(output)
        done[step.name] = output
        seconds = time.monotonic() - started
        yield StepOutcome(step, position, output, reused, seconds, kind.result(output))


class _Stamp:
    """The record of what made an output; it is written after the output is complete."""

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key

    def holds_for(self, output: Path) -> bool:
        if not self.path.is_file():
            return False
        try:
            return bool(json.loads(self.path.read_text()) == self._content(output))
        except (ArtifactError, OSError, ValueError) as error:
            logger.info("%s is built again: %s", output.name, error)
            return False

    def write(self, output: Path) -> None:
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps(self._content(output)))

    def _content(self, output: Path) -> dict[str, str]:
        return {"key": self.key, "output": _identity(output)}


def _identity(output: Path) -> str:
    return sha256_of(output) if output.is_file() else Artifact.load(output).digest


def _key(step: Step, config: Config, sources: Sequence[Artifact], task: Task) -> str:
    kind = STEPS[step.stage]
    identity = {
        "stage": step.stage,
        "config": config.model_dump(mode="json"),
        "sources": [source.digest for source in sources],
        "task": task.fingerprint() if kind.takes_task else None,
        "code": code_version(kind),
        "libraries": library_versions(),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def code_version(kind: StepKind) -> str:
    """Return a digest of the source code that a kind of step runs."""
    digest = hashlib.sha256()
    for package in ("bertender.core", "bertender.tasks", "bertender.measure", *kind.packages):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _embedded() -> Mapping[str, str]:
    folder = resources.files("bertender.recipes")
    return {
        entry.name.removesuffix(".yaml"): entry.read_text(encoding="utf-8")
        for entry in folder.iterdir()
        if entry.name.endswith(".yaml")
    }
