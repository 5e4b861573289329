"""Heads cut by importance and by chance, with and without recovery."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.cells import Table, machine, titled
from benchmarks.harness import Out, Run, Work, record
from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.config import parts_of
from bertender.models.classifier import load_torch_classifier, open_classifier
from bertender.models.own_models import heads_of
from bertender.recipes.recorded_task import recorded_task
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune

CHANCE = "random"
IMPORTANCES = ("gradient", "magnitude", CHANCE)
SHARES = "0.1,0.3,0.5,0.7,0.9"


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of a classifier")],
    work: Work,
    out: Out = None,
    shares: Annotated[str, typer.Option(help="of the heads, by commas")] = SHARES,
    seeds: Annotated[int, typer.Option(help="of the cuts by chance")] = 3,
    max_train: Annotated[int, typer.Option(help="texts of the recovery")] = 2000,
    epochs: Annotated[int, typer.Option(help="of the recovery")] = 1,
) -> None:
    """Cut heads, score, recover, score again."""
    parent = Artifact.load(teacher)
    task = recorded_task(parent, {"max_train": max_train})
    work.mkdir(parents=True, exist_ok=True)
    shared = {"scored_texts": 1000, "allow_constant": True}
    training = {"epochs": epochs, "learning_rate": 5e-5}
    rows = []
    for share in map(float, parts_of(shares)):
        for importance in IMPORTANCES:
            for recover in (False, True):
                # what is trained by chance is trained once
                for seed in range(seeds if importance == CHANCE and not recover else 1):
                    cut = {"heads": share, "importance": importance, "recover": recover}
                    settings = {**shared, **cut, "seed": seed, **(training if recover else {})}
                    heads, value = _cut(parent, task, PruneConfig.parse(settings), work)
                    named = {"importance": importance, "share": share, "recovered": recover}
                    rows.append({**named, "seed": seed, "heads": heads, "score": value})
    unpruned, _ = evaluate(open_classifier(parent), task.dev, task.metric)
    about: dict[str, Any] = {
        **{"task": task.name, "metric": task.metric, "unpruned": unpruned.value},
        "heads": list(heads_of(load_torch_classifier(parent).config)),
        "recovery_texts": len(task.train),
        "config": {**shared, **training},
    }
    record("pruning", rows, out, **about)


def _cut(parent: Artifact, task: Any, config: PruneConfig, work: Path) -> tuple[list[int], float]:
    """Return the remaining heads of each layer, and the score on the held-out texts."""
    with TemporaryDirectory(dir=work) as folder:
        findings = prune(parent, task, config, Path(folder) / "pruned").card.findings
    assert findings.pruning is not None and findings.scores is not None
    return list(findings.pruning.rounds[-1].heads), findings.scores.score


def table(runs: Sequence[Run]) -> Table:
    """The score by the share of heads cut, of each data set."""
    rows = []
    for result in runs:
        for importance in ("gradient", CHANCE):
            for recovered in (False, True):
                name = f"`{importance}`{', recovered' if recovered else ''}"
                values = [f"{curve(result, importance, recovered)[s]:.2f}" for s in (0.3, 0.5, 0.7)]
                uncut = f"{titled(result)}, uncut {result.about['unpruned']:.2f}"
                rows.append([uncut, name, *values])
    about = runs[0].about
    note = (
        f"{sum(about['heads'])} heads in {len(about['heads'])} layers; recovery: 1 epoch of "
        f"{about['recovery_texts']:,} texts. {machine(runs[0])}."
    )
    return Table(["Data set", "Heads cut by", "30 %", "50 %", "70 %"], rows, note)


def curve(result: Run, importance: str, recovered: bool) -> dict[float, float]:
    """Return the score by the share of heads cut, the mean over seeds; uncut at 0."""
    values: dict[float, list[float]] = {0.0: [result.about["unpruned"]]}
    for row in result.rows:
        if (row["importance"], row["recovered"]) == (importance, recovered):
            values.setdefault(row["share"], []).append(row["score"])
    return {share: statistics.mean(scores) for share, scores in sorted(values.items())}
