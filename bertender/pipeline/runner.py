"""Running a recipe: what is built already is not built again.

A step is skipped when its stamp shows that the same stage, config, inputs, data and code have
made the output that is there. A step that was killed has left no stamp and no half-written
output; a training step resumes from its last checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertender.core.artifact import Artifact, check_not_finished, digest_of
from bertender.core.build_once import build_once, was_built
from bertender.core.card import library_versions
from bertender.core.config import Config
from bertender.core.table import installed_digest
from bertender.core.work import forget_work
from bertender.models.own_places import OWN_PLACES
from bertender.pipeline.plan import check_task, make_plan, naming, outputs_of
from bertender.pipeline.recipe import Recipe, Step
from bertender.pipeline.source_files import source_digest
from bertender.pipeline.stages import STAGES
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig

__all__ = ["StepOutcome", "run_recipe", "run_step"]

ADDED_ROWS = {
    "bertender.problems": "problem_type",
    "bertender.heads": "problem_type",
    "bertender.metrics": "metric",
}
"""Entry points of rows that installed packages add -> the field of a task that names its row."""


@dataclass(frozen=True)
class StepOutcome:
    """Outcome of a step."""

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
    force: bool = False,
    at_step: Callable[[Step, int], None] = lambda step, position: None,
) -> Iterator[StepOutcome]:
    """Run the steps in order, yielding what became of each.

    Args:
        recipe: what to run.
        out: directory that gets an artifact, or a JSON file, for each step.
        fresh: build every step again.
        force: replace finished artifacts that no run of a recipe has made there.
        at_step: called before each step.

    Raises:
        BertenderError: whatever a step raises, with the step's name before the message. What
            `plan` checks is raised before the first step runs.
    """
    plan = make_plan(recipe, out)
    for step, config in plan:
        outputs = outputs_of(step, config, out)
        if STAGES[step.stage].makes is not None and not was_built(outputs[0]):
            with naming(step):
                for place in outputs:
                    check_not_finished(place, force)
    task = load_task(TaskConfig.parse(recipe.task))
    check_task(plan, out, task)
    done: dict[str, Artifact] = {}
    for position, (step, config) in enumerate(plan):
        at_step(step, position)
        with naming(step):
            outcome = run_step(step, config, task, done, out, fresh)
            if not STAGES[step.stage].suffix:
                done[step.name] = Artifact.load(outcome.output, verify=False)
        yield outcome


def run_step(
    step: Step,
    config: Config,
    task: Task,
    done: Mapping[str, Artifact],
    out: Path,
    fresh: bool = False,
) -> StepOutcome:
    """Run a step unless its output is there already.

    Args:
        step: what to run.
        config: its settings, read.
        task: whose texts it reads.
        done: the artifacts that it may start from, by the names that the step has for them.
        out: directory that gets its output.
        fresh: run it in any case.
    """
    started = time.monotonic()
    stage = STAGES[step.stage]
    outputs = outputs_of(step, config, out)
    sources = [done[name] for name in step.sources]

    def build() -> None:
        if fresh:
            forget_work(outputs[0])
        stage.run(sources, task, config, outputs[0])

    identity = _identity(step, config, sources, task)
    anew = fresh or not stage.cacheable
    reused = build_once(outputs, identity, build, digest_of, fresh=anew)
    seconds = time.monotonic() - started
    return StepOutcome(step, outputs[0], reused, seconds, stage.result(outputs[0]))


def _parity(source: Artifact) -> dict[str, Any] | None:
    parity = source.card.findings.parity
    return None if parity is None else parity.model_dump(mode="json")


def _identity(
    step: Step, config: Config, sources: Sequence[Artifact], task: Task
) -> dict[str, Any]:
    """Return everything that shapes a step's output."""
    stage = STAGES[step.stage]
    return {
        "stage": step.stage,
        "config": config.model_dump(mode="json"),
        "files": stage.files_digest(config),
        "texts": stage.texts_digest(config, task),
        # a comparison shows names and parity of its sources, which their digests leave out
        "sources": [(s.name, s.digest, _parity(s)) for s in sources],
        "architectures": [
            source_digest([OWN_PLACES[source.card.family].module])
            for source in sources
            if source.card.family in OWN_PLACES
        ],
        "task": task.fingerprint() if stage.needs_task else None,
        "code": stage.code_version(),
        "packages": [
            installed_digest(group, getattr(task, name)) for group, name in ADDED_ROWS.items()
        ],
        "libraries": library_versions(),
    }
