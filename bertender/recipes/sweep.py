"""Sweeps: a recipe with several settings, compared on the validation texts.

Steps that no swept setting changes are built once. While variants are compared, the validation
texts replace the held-out texts: nothing is chosen on held-out texts, and a variant's card has
scores on validation texts. The best variant is then made again with the whole task, and scored once
on the held-out texts.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import BertenderError, ConfigError, UnknownNameError
from bertender.core.files import save_result
from bertender.metrics.metric import Change, LabelSet, Score
from bertender.recipes.recipe import (
    PlannedStep,
    Recipe,
    Setting,
    Step,
    checked,
    naming,
    run_step,
)
from bertender.recipes.stages import STAGES
from bertender.tasks.task import Task

logger = logging.getLogger(__name__)

SHARED, VARIANTS, BEST = "shared", "variants", "best"
"""Folders of a sweep: shared steps, steps of each variant, and steps of the best variant."""
RESULT_NAME = "sweep.json"
UNSAFE = re.compile(r"[^\w.=,+-]")
LONGEST_NAME = 80
DRAW_SEED = 0
"""Seed of `random`: the same variants whenever a sweep continues."""

Announce = Callable[[str], None]


class Axis(NamedTuple):
    """A setting of a step, and the values to try."""

    step: str
    key: str
    values: tuple[Any, ...]


class VariantResult(Record):
    """A variant: its settings and its outcome."""

    name: str
    settings: dict[str, Any] = Field(description="STEP.KEY -> value")
    path: str | None = Field(None, description="of its artifact; None where it failed")
    score: Score | None = Field(None, description="on the validation texts")
    change: Change | None = Field(
        None, description="against the best, text by text; None of the best, and where it failed"
    )
    seconds: float = Field(0.0, description="of what was built in this run")
    failed: str | None = Field(None, description="the message of the error")


class Sweep(Record):
    """Variants of a recipe, and the best of them."""

    recipe: str
    step: str = Field(description="whose model is scored")
    task: str
    metric: str
    texts: int = Field(description="validation texts, which all variants are compared on")
    variants: tuple[VariantResult, ...] = Field(description="best first, those that failed last")
    best: str | None = Field(None, description="name of the variant; None where all failed")
    path: str | None = Field(None, description="of its artifact, made with the whole task")
    held_out: Score | None = Field(None, description="of that one alone, read once")

    @property
    def failures(self) -> tuple[VariantResult, ...]:
        """The variants that failed."""
        return tuple(each for each in self.variants if each.failed is not None)


EXPONENT = re.compile(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+")


def read_axis(text: str, recipe: Recipe, steps: Sequence[Step]) -> Axis:
    """Read `STEP.KEY=VALUE,VALUE`, or `KEY=...` if only one step has such a setting.

    Args:
        text: the values are YAML: separated by commas, or a list in brackets.
        recipe: recipe, for messages.
        steps: steps that make the scored model.

    Raises:
        ConfigError: the text has another form, or names no setting or that of several steps.
    """
    place, equals, listed = text.partition("=")
    step, dot, key = place.partition(".")
    try:
        whole = yaml.safe_load(listed if listed.startswith("[") else f"[{listed}]")
    except yaml.YAMLError:
        whole = None
    if not (equals and place and whole) or (dot and not (step and key)):
        raise ConfigError(
            f"--grid {text!r}: write it as STEP.KEY=VALUE,VALUE, as in student.epochs=1,2."
        )
    names = [each.name for each in steps]
    if not dot:
        key = step
        having = [each.name for each in steps if key in STAGES[each.stage].config.model_fields]
        if len(having) > 1:
            raise ConfigError(
                f"--grid {text!r}: several steps have {key!r}. Write "
                f"{' or '.join(f'{name}.{key}' for name in having)}."
            )
        if not having:
            known = {name for each in steps for name in STAGES[each.stage].config.model_fields}
            raise UnknownNameError(f"setting of steps {', '.join(names)}", key, known)
        (step,) = having
    if step not in names:
        raise ConfigError(
            f"--grid {text!r}: {step!r} is no step that makes the model of {names[-1]!r} in recipe "
            f"{recipe.name!r}. Those are {', '.join(names)}."
        )
    values = tuple(dict.fromkeys(map(_hashable, whole)))
    if len(values) < len(whole):
        raise ConfigError(f"--grid {text!r}: a value is there twice.")
    return Axis(step, key, values)


def _hashable(value: Any) -> Any:
    """Return a YAML value that can be compared with others: lists become tuples, and 1e-4, which
    YAML reads as a string, a number."""
    if isinstance(value, str) and EXPONENT.fullmatch(value):
        return float(value)
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def scored_steps(recipe: Recipe, name: str | None) -> list[Step]:
    """Return the steps that make the model to score, in order; the last one makes it.

    Args:
        recipe: recipe for one task.
        name: name of the last step; by default the last step that makes a scorable model.

    Raises:
        ConfigError: there is no such step, or it makes no scorable model.
    """
    models = [
        each
        for each in recipe.steps
        if not STAGES[each.stage].suffix
        and STAGES[each.stage].needs_task
        and each.stage != STAGES["bundle"].name
    ]
    names = [each.name for each in models]
    if not models or (name is not None and name not in names):
        raise ConfigError(
            f"step={name}: recipe {recipe.name!r} has no such step that makes a model to score. "
            f"Those are {', '.join(names) or 'none'}."
        )
    by_name = {each.name: each for each in recipe.steps}
    wanted, waiting = set[str](), [name or names[-1]]
    while waiting:
        step = by_name[waiting.pop()]
        wanted.add(step.name)
        waiting += step.sources
    return [each for each in recipe.steps if each.name in wanted]


@dataclass(frozen=True)
class Variant:
    """A recipe with one value of each swept setting."""

    name: str
    settings: Mapping[str, Any]
    recipe: Recipe


def variants_of(
    recipe: Recipe, steps: Sequence[Step], axes: Sequence[Axis], drawn: int | None
) -> list[Variant]:
    """Return the variants of a grid in order, or `drawn` of them with a fixed seed.

    Raises:
        ConfigError: a setting is swept twice, or no setting is swept.
    """
    places = [f"{axis.step}.{axis.key}" for axis in axes]
    if not axes or len({*places}) < len(places):
        raise ConfigError(
            f"--grid {', '.join(places) or 'is missing'}: give each setting once, with its values."
        )
    whole = [*itertools.product(*(axis.values for axis in axes))]
    if drawn is not None and drawn < len(whole):
        chosen = sorted(random.Random(DRAW_SEED).sample(range(len(whole)), drawn))  # noqa: S311
        whole = [whole[number] for number in chosen]
    short = recipe.model_copy(update={"steps": tuple(steps)})
    found = []
    for values in whole:
        changes = [Setting(a.step, a.key, value) for a, value in zip(axes, values, strict=True)]
        settings = dict(zip(places, values, strict=True))
        found.append(Variant(_named(settings), settings, short.with_settings(changes)))
    return found


def _named(settings: Mapping[str, Any]) -> str:
    """Return the name of a variant, which is valid for a folder."""
    text = ",".join(f"{place}={value}" for place, value in settings.items())
    safe = UNSAFE.sub("_", text)[:LONGEST_NAME]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def run_sweep(
    recipe: Recipe,
    out: Path,
    grid: Sequence[str],
    *,
    step: str | None = None,
    drawn: int | None = None,
    announce: Announce = lambda text: None,
) -> Sweep:
    """Run the variants of a recipe, and return their outcomes, which are also saved in `out`.

    A variant that fails is recorded, and the others continue. Finished steps are reused.

    Args:
        recipe: recipe for one task.
        out: directory for all outputs.
        grid: settings and their values, as in `read_axis`.
        step: step with the model to score.
        drawn: number of variants to draw from the grid.
        announce: called with a line before each variant.

    Raises:
        ConfigError: the grid is wrong, the recipe has several tasks, or there are no validation
            texts.
        BertenderError: every variant is refused before it runs: the error of the first.
    """
    own = _of_one_task(recipe)
    steps = scored_steps(own, step)
    variants = variants_of(own, steps, [read_axis(each, own, steps) for each in grid], drawn)
    plans, failed, task = _checked(variants, out)
    shared = {each.name for each in steps} - _changed(variants, steps)
    made: dict[str, Artifact] = {}
    seconds: dict[str, float] = {}
    for number, variant in enumerate(variants, start=1):
        if (name := variant.name) in failed:
            continue
        announce(f"[{number}/{len(variants)}] {name}")
        started = time.monotonic()
        try:
            made[name] = _build(plans[name], task, shared, out / SHARED, out / VARIANTS / name)
        except BertenderError as error:
            failed[name] = str(error)
            logger.warning("variant %s failed: %s", name, error)
        seconds[name] = round(time.monotonic() - started, 1)
    results = [
        VariantResult(
            name=each.name,
            settings=dict(each.settings),
            path=str(made[each.name].path) if each.name in made else None,
            seconds=seconds.get(each.name, 0.0),
            failed=failed.get(each.name),
        )
        for each in variants
    ]
    scored = tuple(_scored(results, made, task))
    sweep = Sweep(
        recipe=recipe.name,
        step=steps[-1].name,
        task=task.name,
        metric=task.metric,
        texts=len(task.selection),
        variants=scored,
        best=scored[0].name if made else None,
    )
    save_result(sweep, out / RESULT_NAME)  # the rest may fail too
    if sweep.best is None:
        return sweep
    announce(f"best: {sweep.best}, made with the whole task")
    winner = _build(plans[sweep.best], task, shared, out / SHARED, out / BEST, whole=True)
    read, _ = _score_of(winner, task, held_out=True)
    sweep = sweep.model_copy(update={"path": str(winner.path), "held_out": read})
    save_result(sweep, out / RESULT_NAME)
    return sweep


def _of_one_task(recipe: Recipe) -> Recipe:
    """Return the recipe for its only task; raise ConfigError if there are several."""
    found = recipe.of_tasks()
    if len(found) > 1:
        raise ConfigError(
            f"recipe {recipe.name!r} is of several tasks ({', '.join(found)}), and a sweep chooses "
            "on one. Give a recipe with the key `task`."
        )
    (own,) = found.values()
    return own


def _checked(
    variants: Sequence[Variant], out: Path
) -> tuple[dict[str, list[PlannedStep]], dict[str, str], Task]:
    """Return the steps of each variant, the errors of refused variants, and the task.

    Raises:
        BertenderError: all variants are refused.
        ConfigError: there are no validation texts.
    """
    plans: dict[str, list[PlannedStep]] = {}
    refused: dict[str, str] = {}
    task: Task | None = None
    first: BertenderError | None = None
    for variant in variants:
        try:
            # nothing is written there: finished artifacts are from an earlier run
            folder = out / VARIANTS / variant.name
            plans[variant.name], task = checked(variant.recipe, folder, force=True, task=task)
        except BertenderError as error:
            refused[variant.name], first = str(error), first or error
            logger.warning("variant %s is refused: %s", variant.name, error)
    if task is None:
        assert first is not None
        raise first
    if not len(task.selection):
        raise ConfigError(
            f"task {task.name!r} has no validation texts to choose variants on: the held-out "
            "texts would choose and score. Set a share of the training texts apart with --set "
            "task.select=0.2 (--select of the commands), or give more training texts."
        )
    return plans, refused, task


def _changed(variants: Sequence[Variant], steps: Sequence[Step]) -> set[str]:
    """Return the steps that a swept setting changes, and those that start from them."""
    changed = {place.partition(".")[0] for variant in variants for place in variant.settings}
    for each in steps:
        if changed & {*each.sources}:
            changed.add(each.name)
    return changed


def _build(
    plan: Sequence[PlannedStep],
    task: Task,
    shared: set[str],
    shared_folder: Path,
    own_folder: Path,
    *,
    whole: bool = False,
) -> Artifact:
    """Build the missing steps of a variant, and return the model of the last step.

    Args:
        plan: steps to build.
        task: task for the shared steps and, with `whole`, for the others, held-out texts included.
        shared: names of the shared steps.
        shared_folder, own_folder: output folders of the shared steps and of the others.
        whole: let all steps use the held-out texts.
    """
    apart = replace(task, dev=task.selection, reserved=(*task.reserved, *task.dev.examples))
    done: dict[str, Artifact] = {}
    for planned in plan:
        name = planned.step.name
        is_shared = name in shared
        placed = replace(planned, out=shared_folder if is_shared else own_folder)
        with naming(planned.step):
            outcome = run_step(placed, task if whole or is_shared else apart, done)
        done[name] = Artifact.load(outcome.output, verify=False)
    return done[plan[-1].step.name]


def _score_of(artifact: Artifact, task: Task, *, held_out: bool = False) -> tuple[Score, Any]:
    """Return the score of a model on the validation or held-out texts, and its predictions."""
    from bertender.comparison.accuracy import evaluate
    from bertender.models.classifier import open_classifier

    split = task.dev if held_out else task.selection
    return evaluate(open_classifier(artifact), split, task.metric)


def _scored(
    results: Sequence[VariantResult], made: Mapping[str, Artifact], task: Task
) -> list[VariantResult]:
    """Return the variants with their scores, the best first and failed ones last; ties are in the
    order of the grid."""
    from bertender.metrics import paired_change

    found = {name: _score_of(artifact, task) for name, artifact in made.items()}
    by_name = {each.name: each for each in results}
    order = sorted(found, key=lambda name: -found[name][0].value)
    labels = LabelSet(len(task.labels), task.labels)

    def scored() -> Iterator[VariantResult]:
        for name in order:
            score, predictions = found[name]
            change = None
            if name != order[0]:
                pair = found[order[0]][1], predictions
                change = paired_change(task.metric, task.selection.label_ids, *pair, labels, seed=0)
            yield by_name[name].model_copy(update={"score": score, "change": change})

    return [*scored(), *(each for each in results if each.failed is not None)]
