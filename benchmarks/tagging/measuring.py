"""Fine-tunes a tagger and distils it into MiniBERTs, with three losses and several seeds.

    python -m benchmarks.tagging --encoder FOLDER --work DIR --out FILE.json [--seeds 3]

The sentences are those of SNIPS under $BERTENDER_DATA, the scores those of its test split. What
is in `--work` already, made with the same settings, is not trained again; so several processes
may share the work (`--losses`), and a last call without `--losses` writes the JSON of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from benchmarks.common.making import made_once
from benchmarks.common.options import OptionalOutFile, names_in
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import DATA_VARIABLE, Environment, data_directory, environment
from bertender.core.errors import ConfigError
from bertender.core.progress import show_progress
from bertender.core.saving import save_result
from bertender.measure.accuracy import evaluate
from bertender.metrics.entities import entity_counts
from bertender.metrics.scores import Score
from bertender.models.opening import open_classifier
from bertender.tasks.loading import load_task
from bertender.tasks.task import Task, TaskConfig
from distill.distillation.distiller import DistillConfig, distill
from distill.finetuning.finetune import FinetuneConfig, finetune_by_name

__all__ = ["CONTROL", "LOSSES", "TaggerBudget", "TaggerResult", "TaggingBenchmark"]

FOLDER = "SNIPS-slots"
CONTROL = "hard"
LOSSES: Mapping[str, Mapping[str, float]] = {
    "soft-and-hard": {},
    "soft": {"hard": 0.0},
    CONTROL: {"soft": 0.0},
}
"""The weights of each kind of student; all are MiniBERTs from the same start."""


class TaggerBudget(Record):
    """Budget of teacher and students."""

    max_train: int | None = Field(description="sentences that the students see; None for all")
    epochs: int
    learning_rate: float
    batch_size: int
    teacher_epochs: int
    teacher_learning_rate: float


class TaggerResult(Record):
    """One tagger on the test sentences."""

    loss: str
    seed: int
    parameters: int
    size_bytes: int = Field(description="of its weights on disk")
    score: Score
    found: tuple[int, ...] = Field(description="true entities that it predicts, by sentence")
    answered: tuple[int, ...] = Field(description="entities that it predicts, by sentence")


class TaggingBenchmark(Record):
    """A teacher and its students on one task."""

    task: str
    encoder: str = Field(description="name of what the teacher started from")
    train_sentences: int
    entities: tuple[int, ...] = Field(description="true entities, by sentence")
    budget: TaggerBudget
    environment: Environment
    teacher: TaggerResult
    students: tuple[TaggerResult, ...]


def _teacher(task: Task, encoder: str, budget: TaggerBudget, work: Path) -> Artifact:
    config = FinetuneConfig(
        teacher=encoder,
        epochs=budget.teacher_epochs,
        learning_rate=budget.teacher_learning_rate,
        batch_size=budget.batch_size,
    )
    return made_once(work / "teacher", config, task, None, partial(finetune_by_name, task))


def _student(
    teacher: Artifact, task: Task, loss: str, seed: int, budget: TaggerBudget, work: Path
) -> Artifact:
    config = DistillConfig(
        method="minibert",
        seed=seed,
        epochs=budget.epochs,
        learning_rate=budget.learning_rate,
        batch_size=budget.batch_size,
        weights=dict(LOSSES[loss]),
        allow_constant=True,
    )
    few = replace(task, train=task.train.first(budget.max_train))
    out = work / f"{loss}-{seed}"
    return made_once(out, config, few, teacher, partial(distill, teacher, few))


def _measured(artifact: Artifact, task: Task, loss: str, seed: int) -> TaggerResult:
    score, predictions = evaluate(open_classifier(artifact), task.dev, task.metric)
    counts = entity_counts(_truth(task), _tags(task, predictions))
    right, _, predicted = counts.astype(int).T.tolist()
    typer.echo(f"{loss} {seed}: {score.value:.4f}")
    return TaggerResult(
        loss=loss,
        seed=seed,
        parameters=artifact.card.findings.parameters,
        size_bytes=artifact.card.files["model.safetensors"].size_bytes,
        score=score,
        found=right,
        answered=predicted,
    )


def _truth(task: Task) -> list[tuple[str, ...]]:
    return _tags(task, task.dev.label_ids)


def _tags(task: Task, sentences: Sequence[Sequence[int]]) -> list[tuple[str, ...]]:
    return [tuple(task.labels[number] for number in numbers) for numbers in sentences]


def _task() -> Task:
    root = data_directory()
    if root is None:
        raise ConfigError(f"set {DATA_VARIABLE} to a folder with {FOLDER}/train.seq.in and others.")
    folder = root / FOLDER
    files = {"train": folder / "train.seq.in", "dev": folder / "test.seq.in"}
    return load_task(TaskConfig(task=FOLDER, select=0.0, **files))


def run(
    encoder: Annotated[str, typer.Option(help="what the teacher starts from")],
    work: Annotated[Path, typer.Option(help="folder for the taggers")],
    out: OptionalOutFile = None,
    losses: Annotated[str, typer.Option(help="by commas; all by default")] = "",
    seeds: Annotated[int, typer.Option(help="students of each loss")] = 3,
    max_train: Annotated[int, typer.Option(help="sentences that the students see")] = 2000,
    epochs: Annotated[int, typer.Option(help="of the students")] = 8,
    learning_rate: Annotated[float, typer.Option(help="of the students")] = 1e-3,
    batch_size: Annotated[int, typer.Option(help="sentences")] = 32,
    teacher_epochs: Annotated[int, typer.Option(help="over all sentences")] = 1,
    teacher_learning_rate: Annotated[float, typer.Option(help="of the teacher")] = 2e-4,
) -> None:
    """Train teacher and students, and write what they score."""
    show_progress()
    budget = TaggerBudget(
        max_train=max_train,
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        teacher_epochs=teacher_epochs,
        teacher_learning_rate=teacher_learning_rate,
    )
    task = _task()
    teacher = _teacher(task, encoder, budget, work)
    students = tuple(
        _measured(_student(teacher, task, loss, seed, budget, work), task, loss, seed)
        for loss in names_in("--losses", losses, LOSSES) or LOSSES
        for seed in range(seeds)
    )
    if out is not None:
        true = entity_counts(_truth(task), _truth(task)).astype(int)[:, 0].tolist()
        benchmark = TaggingBenchmark(
            task=task.name,
            encoder=Path(encoder).name,
            train_sentences=len(task.train),
            entities=true,
            budget=budget,
            environment=environment(),
            teacher=_measured(teacher, task, "labels", 0),
            students=students,
        )
        save_result(benchmark, out)
