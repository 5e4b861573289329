"""Models that are trained once for several calls, timed, and sized for a budget of time."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from filelock import FileLock

from benchmarks.harness import Row
from bertender.comparison.accuracy import evaluate
from bertender.comparison.records import measure_size
from bertender.core.artifact import Artifact, digest_of
from bertender.core.build_once import build_once, forget_work
from bertender.core.card import library_versions
from bertender.core.config import Config, Record
from bertender.core.errors import ConfigError
from bertender.core.files import CACHE_VARIABLE, save_result, save_text
from bertender.models.classifier import open_classifier
from bertender.tasks.task import Task

Make = Callable[[Any, Path], Artifact]
"""Settings and a folder -> the artifact that is made there."""
Stage = Callable[..., Artifact]
"""(parent, task, settings, folder) -> the artifact that is made there"""

FACTOR = 4
"""Ratio of the amounts of two successive probes."""
LEAST_SHARE = 0.2
"""Least difference in time of the last and the first probe, as a share of the budget. With a tenth,
a training took 1.4 times its budget."""


def made_once(
    out: Path, config: Config, fingerprint: str, parent: Artifact | None, make: Make
) -> Artifact:
    """Return the artifact at `out` of these settings, data and parent, and make a missing one.

    Of several processes that share the work, the first makes it and the others wait. The identity
    leaves out the code: the students of a benchmark take days, and outlive many a change that
    does not touch them.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    settings = config.model_dump(mode="json")
    identity = (settings, fingerprint, parent and parent.digest, library_versions())
    with FileLock(out.with_name(f".{out.name}.lock")):
        build_once([out], identity, lambda: make(config, out), digest_of)
    return Artifact.load(out)


def made_of(
    parent: Artifact, task: Task, stage: Stage, config: Config, out: Path, is_timed: bool = False
) -> Artifact:
    """Return what a stage makes once of an artifact."""
    of_parent = partial(stage, parent, task)
    made = timed(of_parent) if is_timed else of_parent
    return made_once(out, config, task.fingerprint(), parent, made)


def timed(make: Make) -> Make:
    """Return a function that makes an artifact as `make` does, and records the processor time.

    It starts with an empty cache of teacher outputs, so the time includes the teacher.
    """

    def make_timed(config: Any, out: Path) -> Artifact:
        cache = out.with_name(f"{out.name}.cache")
        forget_work(out)
        shutil.rmtree(cache, ignore_errors=True)
        started = time.process_time()
        try:
            with patch.dict(os.environ, {CACHE_VARIABLE: str(cache)}):
                made = make(config, out)
        finally:
            shutil.rmtree(cache, ignore_errors=True)
        save_text(f"{time.process_time() - started:.1f}\n", _seconds_file(made))
        return made

    return make_timed


def seconds_of(made: Artifact) -> float:
    """Return the processor time of an artifact that was timed.

    Raises:
        ConfigError: the time was not recorded.
    """
    try:
        return float(_seconds_file(made).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{made.path}: how long it took is not there. Remove the folder, and run this again."
        ) from None


def _seconds_file(made: Artifact) -> Path:
    return made.path.with_name(f"{made.name}-{made.digest[:12]}.seconds")


class Probe(Record):
    """A training that was timed."""

    amount: int
    """Texts, passages or epochs."""
    processor_s: float


Train = Callable[[int], Probe]
"""Trains on about the given amount -> the exact amount, and its time."""


class Amount(Record):
    """The amount of training that fits a budget, and the probes that it was computed from."""

    amount: int
    budget_s: float
    identity: str
    probes: tuple[Probe, ...]


def amount_in(
    budget_s: float, file: Path, identity: str, trained: Train, first: int, most: int
) -> Amount:
    """Return the amount of training that fits a processor time, from the file or by probes.

    Args:
        budget_s: the processor time.
        file: the result, for later calls.
        identity: settings and data of the training; a result of others is not used.
        trained: trains on an amount.
        first: amount of the first probe.
        most: the largest amount.
    """
    if file.exists():
        known = Amount.model_validate_json(file.read_text(encoding="utf-8"))
        if (known.budget_s, known.identity) == (budget_s, identity):
            return known
    start = last = trained(min(first, most))
    probes = [start]
    while last.processor_s - start.processor_s < LEAST_SHARE * budget_s and last.amount < most:
        last = trained(min(FACTOR * last.amount, most))
        probes.append(last)
    amount = amount_for(start, last, budget_s, most)
    found = Amount(amount=amount, budget_s=budget_s, identity=identity, probes=tuple(probes))
    save_result(found, file)
    return found


def amount_for(first: Probe, last: Probe, budget_s: float, most: int) -> int:
    """Return the amount that takes the budget, on the line through two probes."""
    if last.amount == first.amount or last.processor_s <= first.processor_s:
        return last.amount
    slope = (last.processor_s - first.processor_s) / (last.amount - first.amount)
    return min(max(round(first.amount + (budget_s - first.processor_s) / slope), 1), most)


def scored_row(artifact: Artifact, task: Task, **more: Any) -> Row:
    """Return a row of an artifact's scores on the held-out and the validation texts."""
    classifier = open_classifier(artifact)
    held_out, predictions = evaluate(classifier, task.dev, task.metric)
    choice = None
    if task.chosen_on == "selection":
        choice = evaluate(classifier, task.choices, task.metric)[0].model_dump()
    return {
        "name": artifact.name,
        "seed": artifact.card.seed,
        "size": measure_size(artifact, classifier.parameters).model_dump(),
        "choice": choice,
        "score": held_out.model_dump(),
        "predictions": predictions.tolist(),
        **more,
    }


def task_facts(task: Task) -> dict[str, Any]:
    """Return the facts of a task that all rows of `scored_row` share."""
    return {
        "task": task.name,
        "metric": task.metric,
        "labels": list(task.dev.label_ids),
        "label_count": len(task.labels),
        "chosen_on": task.chosen_on,
    }


def check_choices(teacher: Artifact, task: Task) -> None:
    """Raise ConfigError where there are no validation texts."""
    if task.chosen_on != "selection":
        raise ConfigError(
            f"{teacher.path} has no validation texts, so that every score would be of texts that "
            "may have chosen it. Fine-tune it with --select 0.1."
        )
