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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact, sha256_of
from bertender.core.atomic import replacing
from bertender.core.card import library_versions
from bertender.core.config import Config
from bertender.core.errors import ArtifactError
from bertender.core.work import forget_work
from bertender.pipeline.plan import check_task, make_plan, naming, outputs_of
from bertender.pipeline.recipe import Recipe, Step
from bertender.pipeline.stages import STAGES
from bertender.tasks.registry import load_task
from bertender.tasks.task import Task, TaskConfig

__all__ = ["StepOutcome", "run_recipe"]

logger = logging.getLogger(__name__)


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
        BertenderError: whatever a step raises, with the step's name before the message. What
            `plan` checks is raised before the first step runs.
    """
    plan = make_plan(recipe, out)
    task = load_task(TaskConfig.parse(recipe.task))
    check_task(plan, out, task)
    done: dict[str, Artifact] = {}
    for position, (step, config) in enumerate(plan):
        at_step(step, position)
        with naming(step):
            outcome = _run_step(step, config, task, done, out, fresh)
            if not STAGES[step.stage].suffix:
                done[step.name] = Artifact.load(outcome.output, verify=False)
        yield outcome


def _run_step(
    step: Step, config: Config, task: Task, done: Mapping[str, Artifact], out: Path, fresh: bool
) -> StepOutcome:
    """Run a step unless its output is there already."""
    started = time.monotonic()
    stage = STAGES[step.stage]
    output, *siblings = outputs_of(step, config, out)
    sources = [done[name] for name in step.sources]
    key = _key(step, config, sources, task)
    stamp = _Stamp(out / ".stamps" / f"{step.name}.json", key, [output, *siblings])
    reused = not fresh and stage.cacheable and stamp.holds()
    if not reused:
        if fresh:
            forget_work(output)
        stage.run(sources, task, config, output)
        stamp.write()
    return StepOutcome(step, output, reused, time.monotonic() - started, stage.result(output))


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


def _parity(source: Artifact) -> dict[str, Any] | None:
    parity = source.card.findings.parity
    return None if parity is None else parity.model_dump(mode="json")


def _key(step: Step, config: Config, sources: Sequence[Artifact], task: Task) -> str:
    """Return a digest of everything that shapes a step's output."""
    stage = STAGES[step.stage]
    identity = {
        "stage": step.stage,
        "config": config.model_dump(mode="json"),
        "files": stage.files_digest(config),
        # a comparison shows names and parity of its sources, which their digests leave out
        "sources": [(s.name, s.digest, _parity(s)) for s in sources],
        "task": task.fingerprint() if stage.needs_task else None,
        "code": stage.code_version(),
        "libraries": library_versions(),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
