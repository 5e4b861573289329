"""Speed and score of distilling in several ways.

Every way trains the same student from the same teacher, texts, loss and seeds. The loss is
`distilbert` without its cosine: soft and hard labels, which asks nothing of the teacher that only
one of the ways could make cheap. Ways take turns, seed by seed, so that a drift of the machine hits
all.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.cells import Table, gain, machine, points, task_title, times, two
from benchmarks.harness import Noisy, Out, Row, Run, Work, grouped, record, watched
from benchmarks.making import check_choices, made_of, task_facts
from bertender.comparison.accuracy import evaluate
from bertender.comparison.records import speedup
from bertender.core.artifact import Artifact, read_timing
from bertender.models.classifier import open_classifier
from bertender.recipes.recorded_task import recorded_task
from distill.distillation.config import DistillConfig
from distill.distillation.distiller import distill

IN_EACH_STEP = {"teacher_cache_mb": 0, "precision": "fp32"}
WAYS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "usual": ("teacher in each step, random batches, fp32", {**IN_EACH_STEP, "batches": "random"}),
    "random": ("cached outputs, random batches", {"batches": "random"}),
    "buckets": (
        "teacher in each step, batches of like length, fp32",
        {**IN_EACH_STEP, "batches": "sorted"},
    ),
    "cached": ("cached outputs, batches of like length", {"batches": "sorted"}),
    **{
        f"pooled-{size}": (
            f"cached outputs, pools of {size} batches",
            {"batches": "pooled", "pool_batches": size},
        )
        for size in (4, 8, 16, 50)
    },
}
"""Way -> its title and settings; the first is the reference."""
WARM_UP_TEXTS = 64


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    work: Work,
    out: Out = None,
    seeds: Annotated[int, typer.Option(help="students of each way")] = 3,
    max_train: Annotated[int, typer.Option(help="training texts")] = 4000,
    epochs: Annotated[int, typer.Option(help="of each student")] = 2,
    layers: Annotated[int, typer.Option(help="of each student")] = 3,
    noisy: Noisy = False,
) -> None:
    """Distil by every way, and record times and scores."""
    source = Artifact.load(teacher)
    task = recorded_task(source, {"max_train": max_train})
    check_choices(source, task)
    shared = {"method": "distilbert", "weights": {"cosine": 0}, "learning_rate": 1e-4}
    shared |= {"epochs": epochs, "layers": layers, "vocab_size": "all", "allow_constant": True}
    few = replace(task, train=task.train.first(WARM_UP_TEXTS))
    for name, (_, settings) in WAYS.items():
        config = DistillConfig.parse({**shared, **settings, "epochs": 1})
        made_of(source, few, distill, config, work / f"{name}-warm")
    rows = []
    with watched(noisy, out) as meter:
        for seed in range(seeds):
            # each seed begins with another way
            for name in (*[*WAYS][seed % len(WAYS) :], *[*WAYS][: seed % len(WAYS)]):
                config = DistillConfig.parse({**shared, **WAYS[name][1], "seed": seed})
                place = work / f"{name}-{seed}"
                made = made_of(source, task, distill, config, place, is_timed=True)
                rows.append({"way": name, "seed": seed, **_timed_and_scored(made, task)})
    about = {
        **task_facts(task),
        "further_labels": list(task.choices.label_ids),
        "texts": len(task.train),
        "config": shared,
    }
    record("training", rows, out, meter.load, **about)


def _timed_and_scored(made: Artifact, task: Any) -> Row:
    timing, classifier = read_timing(made), open_classifier(made)
    assert timing is not None
    held_out, predictions = evaluate(classifier, task.dev, task.metric)
    _, further = evaluate(classifier, task.choices, task.metric)
    epochs = made.card.config["epochs"]
    cached = made.card.config["teacher_cache_mb"] > 0
    return {
        "cache_s": timing.teacher_s if cached else 0.0,
        "epoch_s": [timing.training_s / epochs] * epochs,
        "teacher_s": timing.teacher_s,
        "score": held_out.model_dump(),
        "predictions": predictions.tolist(),
        "further_predictions": further.tolist(),
    }


def table(runs: Sequence[Run]) -> Table:
    """Seconds of an epoch by each way, and points of its students on texts that none has read."""
    (result,) = runs
    ways = grouped(sorted(result.rows, key=lambda row: int(row["seed"])), "way")
    first = ways[next(iter(WAYS))]
    about = {**result.about, "labels": result.about["further_labels"]}
    further = result.model_copy(update={"about": about})
    rows = []
    for name, (title, _) in WAYS.items():
        if own := ways.get(name):
            ratio = speedup(_milliseconds(first), _milliseconds(own))
            change = gain(further, _further(first), _further(own))
            seconds = two(statistics.median(s for row in own for s in _epochs_s(row)))
            gained = ["-", "-"] if own is first else [times(ratio), points(change)]
            rows.append([title, seconds, *gained])
    texts, seeds = result.about["texts"], len(first)
    note = (
        f"{texts:,} training texts of {task_title(result.about['task'])}, {seeds} seeds; points on "
        f"{len(about['labels']):,} texts that no model has read; brackets are 95 % intervals. "
        f"{machine(result)}."
    )
    return Table(["Way", "Seconds an epoch", "Times as fast", "Points"], rows, note)


def _epochs_s(row: Row) -> list[float]:
    """Return each epoch's seconds, with its part of the cached outputs."""
    return [seconds + row["cache_s"] / len(row["epoch_s"]) for seconds in row["epoch_s"]]


def _milliseconds(rows: Sequence[Row]) -> list[list[float]]:
    return [[1000 * seconds] for row in rows for seconds in _epochs_s(row)]


def _further(rows: Sequence[Row]) -> list[Row]:
    return [{"predictions": row["further_predictions"]} for row in rows]
