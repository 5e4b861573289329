"""Distils a teacher by every method at an equal budget and scores the students.

    python -m benchmarks.methods TEACHER --work DIR --out FILE.json [--seeds 3] [--max-train 4000]

The students stay in `--work`; one that is there already, made with the same settings, is not
trained again. So several processes may share the work (`--methods`), and a last call without
`--methods` writes the JSON of all. `--add-to FILE.json` takes over what a saved benchmark has of
other methods, if all was measured alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field

from benchmarks.common.making import made_once
from benchmarks.common.options import OptionalOutFile, names_in
from bertender.comparison.accuracy import ConstantRow, constant_row, evaluate
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.core.files import save_result
from bertender.core.findings import ChosenOn
from bertender.core.machine import Environment, environment
from bertender.core.progress import show_progress
from bertender.metrics.resampling import Score
from bertender.models.opening import open_classifier
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task
from distill.distillation.distill_config import DistillConfig
from distill.distillation.distiller import distill
from distill.methods import METHODS

__all__ = ["CONTROL", "Budget", "MethodsBenchmark", "StudentResult", "config_of", "with_earlier"]

CONTROL = "hard"


class Budget(Record):
    """Settings that all students share."""

    epochs: int = Field(description="over all phases of a method together")
    learning_rate: float = Field(description="or the method's own, where that is higher")
    batch_size: int
    layers: int
    max_train: int | None


class StudentResult(Record):
    """One student: a method with a seed."""

    method: str
    seed: int
    parameters: int
    layers: int | None = Field(None, description="None where the method has a depth of its own")
    learning_rate: float | None = Field(None, description="of its last phase")
    score: Score
    predictions: tuple[int, ...] = Field(description="label numbers of the held-out texts")
    choice: Score | None = Field(
        None, description="on texts of the training file that nothing learns from, to choose by"
    )

    @property
    def choices(self) -> int:
        """How many texts there were to choose by."""
        return self.choice.n if self.choice else 0


class MethodsBenchmark(Record):
    """All students of one teacher on one task."""

    task: str
    metric: str
    labels: tuple[int, ...] = Field(description="true label numbers of the held-out texts")
    teacher: Score
    budget: Budget
    environment: Environment
    students: tuple[StudentResult, ...]
    chosen_on: ChosenOn | None = Field(None, description="None in older files: the held-out texts")
    constant: ConstantRow | None = Field(
        None, description="the most frequent training label for every text; of earlier files None"
    )


def config_of(method: str, seed: int, budget: Budget) -> DistillConfig:
    """Return the settings of a student: the phases before the last share half of the epochs.

    Methods with a higher rate of their own keep all of theirs: their students start from noise, and
    would hardly move at the rate of the others.

    Raises:
        ConfigError: there are fewer epochs than the method has phases.
    """
    earlier = len(METHODS[method].at(budget.layers).phases) - 1
    if budget.epochs <= earlier:
        raise ConfigError(
            f"epochs={budget.epochs}: method {method!r} has {earlier + 1} phases and needs an "
            "epoch for each. Give more epochs, or leave it out of --methods."
        )
    each = max(budget.epochs // (2 * earlier), 1) if earlier else 0
    own_rate = METHODS[method].settings.get("learning_rate", 0.0)
    rate = max(budget.learning_rate, own_rate)
    earlier_rate = None if rate == own_rate else rate
    settings = {"earlier_epochs": each, "earlier_learning_rate": earlier_rate}
    return DistillConfig(
        method=method,
        seed=seed,
        layers=budget.layers if METHODS[method].student.usual_layers == "half" else None,
        epochs=budget.epochs - earlier * each,
        learning_rate=rate,
        batch_size=budget.batch_size,
        vocab_size="all",
        allow_constant=True,  # a row that learned nothing is a result
        **(settings if earlier else {}),
    )


def _student(teacher: Artifact, task: Task, config: DistillConfig, out: Path) -> Artifact:
    """Return the student of these settings, trained now or before."""
    return made_once(out, config, task, teacher, partial(distill, teacher, task))


def _place(work: Path, config: DistillConfig) -> Path:
    return work / f"{config.method}-{config.seed}"


def _measured(student: Artifact, task: Task, config: DistillConfig) -> StudentResult:
    classifier = open_classifier(student)
    score, predictions = evaluate(classifier, task.dev, task.metric)
    apart = task.chosen_on == "selection"
    choice = evaluate(classifier, task.selection, task.metric)[0] if apart else None
    return StudentResult(
        method=config.method,
        seed=config.seed,
        parameters=classifier.parameters,
        layers=config.layers,
        learning_rate=config.learning_rate,
        score=score,
        predictions=tuple(predictions.tolist()),
        choice=choice,
    )


def _runnable() -> list[str]:
    """The methods that start from the teacher alone."""
    return [name for name, method in METHODS.items() if not method.student.wants_own_start]


def with_earlier(benchmark: MethodsBenchmark, earlier: MethodsBenchmark) -> MethodsBenchmark:
    """Return a benchmark with what an earlier one has of other methods.

    Raises:
        ConfigError: they were not measured alike.
    """
    for name in ("task", "labels", "teacher", "budget", "chosen_on"):
        ours, theirs = getattr(benchmark, name), getattr(earlier, name)
        if ours != theirs:
            raise ConfigError(
                f"--add-to: its {name} is not this one's, so that its students cannot be compared "
                "with these. Give a benchmark of the same settings, or run all methods again."
            )
    new = {student.method for student in benchmark.students}
    taken = [
        _completed(each, earlier.budget) for each in earlier.students if each.method not in new
    ]
    return benchmark.model_copy(update={"students": (*taken, *benchmark.students)})


def _completed(student: StudentResult, budget: Budget) -> StudentResult:
    """Return a result with what older runs did not record and the budget has."""
    config = config_of(student.method, student.seed, budget)
    if student.learning_rate is not None:
        return student
    stated = {"layers": config.layers, "learning_rate": config.learning_rate}
    return student.model_copy(update=stated)


def _check_control(chosen: Sequence[str], out: Path | None) -> None:
    """Raise ConfigError where the table would lack the control, which it pairs all others with."""
    if out is not None and CONTROL not in chosen:
        raise ConfigError(f"--methods leaves out {CONTROL!r}, which the others are compared with.")


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    work: Annotated[Path, typer.Option(help="folder for the students")],
    out: OptionalOutFile = None,
    methods: Annotated[str, typer.Option(help="by commas; all by default")] = "",
    seeds: Annotated[int, typer.Option(help="students of each method")] = 3,
    max_train: Annotated[int, typer.Option(help="training texts, the same for all")] = 4000,
    epochs: Annotated[int, typer.Option(help="of all phases together")] = 4,
    learning_rate: Annotated[float, typer.Option(help="of all phases")] = 1e-4,
    batch_size: Annotated[int, typer.Option(help="examples")] = 32,
    layers: Annotated[int, typer.Option(help="of each student")] = 3,
    add_to: Annotated[Path | None, typer.Option(help="a saved benchmark to add to")] = None,
) -> None:
    """Distil by every method, and write what the students score."""
    show_progress()
    budget = Budget(
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        layers=layers,
        max_train=max_train,
    )
    source = Artifact.load(teacher)
    task = recorded_task(source, {"max_train": max_train})
    chosen = names_in("--methods", methods, METHODS) or _runnable()
    _check_control(chosen, out)
    earlier = _read(add_to) if add_to else None
    configs = [config_of(method, seed, budget) for method in chosen for seed in range(seeds)]
    results = [
        _measured(_student(source, task, config, _place(work, config)), task, config)
        for config in configs
    ]
    for result in results:
        typer.echo(f"{result.method} {result.seed}: {result.score.value:.4f}")
    if out is not None:
        score, _ = evaluate(open_classifier(source), task.dev, task.metric)
        benchmark = MethodsBenchmark(
            task=task.name,
            metric=task.metric,
            labels=task.dev.label_ids,
            teacher=score,
            budget=budget,
            environment=environment(),
            students=tuple(results),
            chosen_on=task.chosen_on,
            constant=constant_row(task),
        )
        save_result(with_earlier(benchmark, earlier) if earlier else benchmark, out)


def _read(path: Path) -> MethodsBenchmark:
    return MethodsBenchmark.model_validate_json(path.read_text(encoding="utf-8"))
