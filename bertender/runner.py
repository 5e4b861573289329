"""Running a recipe: what is built already is not built again.

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
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact, sha256_of
from bertender.core.atomic import replacing
from bertender.core.card import library_versions
from bertender.core.config import Config
from bertender.core.errors import ArtifactError, BertenderError, ConfigError
from bertender.core.work import forget_work
from bertender.recipe import Recipe, Step
from bertender.steps import STEPS, StepKind
from bertender.tasks.registry import load_task
from bertender.tasks.task import Task, TaskConfig

__all__ = ["StepOutcome", "code_version", "run_recipe"]

logger = logging.getLogger(__name__)

SHARED_PACKAGES = ("bertender.core", "bertender.tasks", "bertender.measure")


@dataclass(frozen=True)
class StepOutcome:
    """What became of a step."""

    step: Step
    output: Path
    reused: bool
    seconds: float
    result: dict[str, Any]


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

    Raises:
        BertenderError: whatever a step raises, with the step's name before the message. Settings,
            and what the machine must have, are checked before the first step runs.
    """
    configs = [_config(step) for step in recipe.steps]
    _refuse_shared_outputs(recipe.steps, configs, out)
    task = load_task(TaskConfig.parse(recipe.task))
    done: dict[str, Artifact] = {}
    for position, (step, config) in enumerate(zip(recipe.steps, configs, strict=True)):
        at_step(step, position)
        with _naming(step):
            outcome = _run_step(step, config, task, done, out, fresh)
            if not STEPS[step.stage].suffix:
                done[step.name] = Artifact.load(outcome.output, verify=False)
        yield outcome


def code_version(kind: StepKind) -> str:
    """Return a digest of the source code that a kind of step runs."""
    digest = hashlib.sha256()
    for package in (*SHARED_PACKAGES, *kind.packages):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        for path in sorted(Path(spec.origin).parent.rglob("*.py")):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _config(step: Step) -> Config:
    with _naming(step):
        STEPS[step.stage].require()
        return STEPS[step.stage].config.parse(step.settings)


def _outputs(step: Step, config: Config, out: Path) -> list[Path]:
    """Return all that a step writes, its own output first."""
    kind = STEPS[step.stage]
    output = out / (step.name + kind.suffix)
    return [output, *kind.siblings(config, output)]


def _refuse_shared_outputs(steps: Sequence[Step], configs: Sequence[Config], out: Path) -> None:
    """Raise ConfigError where a step would write over what another step has made."""
    writers: dict[Path, str] = {}
    for step, config in zip(steps, configs, strict=True):
        for output in _outputs(step, config, out.resolve()):
            if writers.setdefault(output, step.name) != step.name:
                raise ConfigError(
                    f"steps {writers[output]!r} and {step.name!r} would both write {output.name}: "
                    "a step of several tasks writes one artifact more for each. Rename one step."
                )


@contextmanager
def _naming(step: Step) -> Iterator[None]:
    """Put the step's name before the message of an error."""
    try:
        yield
    except BertenderError as error:
        error.args = (f"step {step.name!r} ({step.stage}): {error}",)
        raise


def _run_step(
    step: Step, config: Config, task: Task, done: Mapping[str, Artifact], out: Path, fresh: bool
) -> StepOutcome:
    """Run a step unless its output is there already."""
    started = time.monotonic()
    kind = STEPS[step.stage]
    output, *siblings = _outputs(step, config, out)
    sources = [done[name] for name in step.sources]
    key = _key(step, config, sources, task)
    stamp = _Stamp(out / ".stamps" / f"{step.name}.json", key, [output, *siblings])
    reused = not fresh and kind.reusable and stamp.holds()
    if not reused:
        if fresh:
            forget_work(output)
        kind.run(sources, task, config, output)
        stamp.write()
    return StepOutcome(step, output, reused, time.monotonic() - started, kind.result(output))


class _Stamp:
    """The record of what made a step's outputs; it is written after they are complete."""

    def __init__(self, path: Path, key: str, outputs: Sequence[Path]) -> None:
        self.path = path
        self.key = key
        self.outputs = outputs

    def holds(self) -> bool:
        if not self.path.is_file():
            return False
        try:
            return bool(json.loads(self.path.read_text()) == self._content())
        except (ArtifactError, OSError, ValueError) as error:
            logger.info("%s is built again: %s", self.outputs[0].name, error)
            return False

    def write(self) -> None:
        with replacing(self.path) as temporary:
            temporary.write_text(json.dumps(self._content()))

    def _content(self) -> dict[str, Any]:
        return {"key": self.key, "outputs": [_identity(output) for output in self.outputs]}


def _identity(output: Path) -> str:
    return sha256_of(output) if output.is_file() else Artifact.load(output).digest


def _key(step: Step, config: Config, sources: Sequence[Artifact], task: Task) -> str:
    """Return a digest of everything that shapes a step's output."""
    kind = STEPS[step.stage]
    identity = {
        "stage": step.stage,
        "config": config.model_dump(mode="json"),
        "files": kind.files(config),
        # a comparison shows names and parity of its sources, which their digests leave out
        "sources": [(s.name, s.digest, s.card.metrics.get("parity")) for s in sources],
        "task": task.fingerprint() if kind.takes_task else None,
        "code": code_version(kind),
        "libraries": library_versions(),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
