"""Prunes more and more of a classifier's heads by each importance, with and without recovery.

    python -m benchmarks.pruning TEACHER --work DIR --out FILE.json [--shares 0.1,0.5,0.9]

Every point starts from the unpruned model. Without recovery, cuts by chance are drawn by each of
`--seeds`, since they differ; with it, each point is trained once, on `--max-train` texts. Points
that FILE.json has already, made with the same settings, are not made again.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from pydantic import Field

from benchmarks.common.resuming import continued
from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.files import save_result
from bertender.core.findings import ChosenOn
from bertender.core.machine import Environment, environment
from bertender.core.progress import show_progress
from bertender.models.opening import load_torch_classifier, open_classifier
from bertender.models.own_models import heads_of
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from distill.pruning.config import PruneConfig
from distill.pruning.pruner import prune

__all__ = ["CONTROL", "IMPORTANCES_SHOWN", "PruningBenchmark", "PruningPoint", "points_of", "run"]

CONTROL = "random"
IMPORTANCES_SHOWN = ("gradient", "magnitude", CONTROL)


class PruningPoint(Record):
    """One cut."""

    importance: str
    share: float = Field(description="of the heads, cut")
    recovered: bool = Field(description="trained after the cut, on the unpruned model's outputs")
    seed: int
    heads: tuple[int, ...] = Field(description="that remain in each layer")
    score: float = Field(description="on the held-out texts")
    choice: float | None = Field(
        None, description="on the texts to choose by; None in files that do not record it"
    )


class PruningBenchmark(Record):
    """All cuts of a model, and their conditions."""

    teacher: str = Field("", description="its digest; of earlier files unknown")
    task: str
    metric: str
    n: int = Field(description="held-out texts")
    unpruned: float
    heads: tuple[int, ...] = Field(description="of each layer, before")
    recovery_texts: int
    config: dict[str, Any] = Field(description="what the cuts share, of PruneConfig")
    environment: Environment
    chosen_on: ChosenOn | None = Field(None, description="None in older files: the held-out texts")
    points: tuple[PruningPoint, ...]


def points_of(
    shares: tuple[float, ...], recovered_shares: tuple[float, ...], seeds: int
) -> list[tuple[str, float, bool, int]]:
    """Return what to measure: (importance, share, recovered, seed)."""
    plain = [
        (importance, share, False, seed)
        for share in shares
        for importance in IMPORTANCES_SHOWN
        for seed in range(seeds if importance == CONTROL else 1)
    ]
    trained = [
        (importance, share, True, 0)
        for share in recovered_shares
        for importance in IMPORTANCES_SHOWN
    ]
    return [*plain, *trained]


def _cut(
    parent: Artifact, task: Task, config: PruneConfig, work: Path
) -> tuple[tuple[int, ...], float, float]:
    """Return the remaining heads of each layer, the score, and that on the texts to choose by."""
    with TemporaryDirectory(dir=work) as folder:
        findings = prune(parent, task, config, Path(folder) / "pruned").card.findings
    assert findings.pruning is not None and findings.scores is not None
    last = findings.pruning.rounds[-1]
    return last.heads, findings.scores.score, last.score


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of a classifier")],
    work: Annotated[Path, typer.Option(help="a folder for checkpoints, which go again")],
    out: Annotated[Path, typer.Option(help="the JSON to write, or to go on with")],
    shares: Annotated[str, typer.Option(help="of the heads, cut without recovery")] = (
        "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9"
    ),
    recovered_shares: Annotated[str, typer.Option(help="cut, then trained")] = "0.5,0.7,0.9",
    seeds: Annotated[int, typer.Option(help="of the cuts by chance")] = 3,
    max_train: Annotated[int, typer.Option(help="texts of the recovery")] = 2000,
    epochs: Annotated[int, typer.Option(help="of the recovery")] = 1,
    learning_rate: Annotated[float, typer.Option(help="of the recovery")] = 5e-5,
) -> None:
    """Cut, score and write every point."""
    show_progress()
    parent = Artifact.load(teacher)
    task = recorded_task(parent, {"max_train": max_train})
    training, scoring = {"epochs": epochs, "learning_rate": learning_rate}, {"scored_texts": 1000}
    begun = _begun(parent, task, {**training, **scoring})
    benchmark = continued(begun, out, "points", may_differ={"environment"})
    work.mkdir(parents=True, exist_ok=True)
    plan = points_of(_numbers(shares), _numbers(recovered_shares), seeds)
    made = {(each.importance, each.share, each.recovered, each.seed) for each in benchmark.points}
    for importance, share, recovered, seed in plan:
        if (importance, share, recovered, seed) in made:
            continue
        drawn = {"heads": share, "importance": importance, "recover": recovered, "seed": seed}
        settings = {**drawn, **scoring, **(training if recovered else {}), "allow_constant": True}
        heads, value, choice = _cut(parent, task, PruneConfig(**settings), work)
        point = PruningPoint(
            importance=importance,
            share=share,
            recovered=recovered,
            seed=seed,
            heads=heads,
            score=value,
            choice=choice,
        )
        benchmark = benchmark.model_copy(update={"points": (*benchmark.points, point)})
        save_result(benchmark, out)
        typer.echo(f"{importance} {share:g} {'recovered' if recovered else 'cut'}: {value:.4f}")


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(",") if part)


def _begun(parent: Artifact, task: Task, shared: dict[str, Any]) -> PruningBenchmark:
    """Return a benchmark without points."""
    result, _ = evaluate(open_classifier(parent), task.dev, task.metric)
    return PruningBenchmark(
        teacher=parent.digest,
        task=task.name,
        metric=task.metric,
        n=len(task.dev),
        unpruned=result.value,
        heads=tuple(heads_of(load_torch_classifier(parent).config)),
        recovery_texts=len(task.train),
        config=shared,
        environment=environment(),
        chosen_on=task.chosen_on,
        points=(),
    )
