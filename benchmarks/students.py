"""Scores students of one teacher, of several settings and seeds, on the same texts.

    python -m benchmarks.students TEACHER STUDENT [STUDENT ...] --out FILE.json

A student is any artifact that comes from the teacher: distilled, pruned, exported or quantized.
Those whose folders differ by a number at the end (`student-0`, `student-1`) are one row of the
table, such as the seeds of one command. Each is scored on the texts to choose by, which nothing
learns from, and on the held-out ones, which choose nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import ConfigError
from bertender.core.progress import show_progress, track
from bertender.core.saving import save_result
from bertender.core.timing import Timing, read_timing
from bertender.measure.accuracy import evaluate
from bertender.measure.size import Size, measure_size
from bertender.metrics.scores import Score
from bertender.models.opening import open_classifier
from bertender.pipeline.recorded_task import recorded_task
from bertender.tasks.task import ChosenOn, Task

__all__ = ["ScoredModel", "StudentsBenchmark"]


class ScoredModel(Record):
    """An artifact and what it scores."""

    name: str
    digest: str
    parent: str | None = Field(description="digest of what it was made from")
    stage: str
    seed: int
    settings: dict[str, Any] = Field(description="of its stage, as its card has them")
    timing: Timing | None = Field(description="of its training; None where it was not trained")
    size: Size
    choice: Score = Field(description="on the texts to choose by")
    score: Score
    predictions: tuple[int, ...] = Field(description="label numbers of the held-out texts")


class StudentsBenchmark(Record):
    """Students of one teacher on one task."""

    task: str
    metric: str
    labels: tuple[int, ...] = Field(description="true label numbers of the held-out texts")
    label_names: tuple[str, ...]
    chosen_on: ChosenOn
    environment: Environment
    teacher: ScoredModel
    students: tuple[ScoredModel, ...]


def _scored(artifact: Artifact, task: Task) -> ScoredModel:
    classifier = open_classifier(artifact)
    choice, _ = evaluate(classifier, task.choices, task.metric)
    score, predictions = evaluate(classifier, task.dev, task.metric)
    card = artifact.card
    return ScoredModel(
        name=artifact.name,
        digest=artifact.digest,
        parent=card.parent.digest if card.parent else None,
        stage=card.stage,
        seed=card.seed,
        settings={name: _without_folders(value) for name, value in card.config.items()},
        timing=read_timing(artifact),
        size=measure_size(artifact, classifier.parameters),
        choice=choice,
        score=score,
        predictions=tuple(predictions.tolist()),
    )


def _without_folders(value: Any) -> Any:
    """Return a setting without the folders of this machine."""
    return Path(value).name if isinstance(value, str) and "/" in value else value


def _check_students(teacher: Artifact, students: Sequence[Artifact]) -> None:
    """Raise ConfigError where an artifact has another task than the teacher, or another's name."""
    for each in students:
        if each.card.task != teacher.card.task:
            raise ConfigError(
                f"{each.path} was made for other texts or labels than {teacher.path}. Give "
                "artifacts that come from this teacher, with its task."
            )
    names = [each.name for each in (teacher, *students)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"two artifacts are called {twice[0]!r}: give each folder its own name.")


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    students: Annotated[list[Path], typer.Argument(help="artifacts that come from it")],
    out: Annotated[Path, typer.Option(help="the JSON to write")],
) -> None:
    """Score the teacher and each student, and write what they score."""
    show_progress()
    source, artifacts = Artifact.load(teacher), [Artifact.load(path) for path in students]
    _check_students(source, artifacts)
    task = recorded_task(source, {})
    first, *rest = (
        _scored(each, task) for each in track((source, *artifacts), "score", 1 + len(artifacts))
    )
    benchmark = StudentsBenchmark(
        task=task.name,
        metric=task.metric,
        labels=task.dev.label_ids,
        label_names=task.labels,
        chosen_on=task.chosen_on,
        environment=environment(),
        teacher=first,
        students=tuple(rest),
    )
    save_result(benchmark, out)


if __name__ == "__main__":
    typer.run(run)
