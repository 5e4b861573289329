"""Trains students by several ways, and controls of labels alone, on a task; scores all of them.

    python -m benchmarks.controls TEACHER --work DIR --out FILE.json [--ways A,B] [--seeds 3]
        [--student ENCODER --further-texts N]

What distilling gives is what its student scores above the same student trained on labels alone.
Students are made of the teacher's layers, and there are two such controls: `hard` starts from the
fine-tuned teacher's layers and so inherits a part of what it is to control; `hard-encoder` starts
from the same layers of the encoder before it was fine-tuned. With `--student`, they are made of
that encoder's layers instead, and the control is `labels`; one way learns from the teacher's
outputs on further texts of the training file too, whose labels nobody reads.

A control is trained for as many epochs as a way's last phase, and for several times as many, so
that one has a way's time, or scores less than a shorter one. The one that scores best on the texts
to choose by, which nothing learns from, stands for the control; the first seed chooses, and of the
others no further seeds are trained. The processor's time of every training is recorded. A static
student is a way too, with its own rate and passes.

The students stay in `--work`; one that is there already, made with the same settings, is not
trained again. So several processes may share the work (`--ways`, without `--out`), but one should
have all lengths of a control. What the teacher makes of the texts stays there too, for each way:
the way's first seed has the time of that.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import Field

from benchmarks.common.making import made_once, seconds_of, timed
from benchmarks.common.options import OptionalOutFile, names_in
from benchmarks.controls.ways_to_train import CONTROLS, ENCODER, FURTHER_TEXTS, STUDENT, WAYS
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.errors import ConfigError, UnknownNameError
from bertender.core.progress import show_progress
from bertender.core.saving import save_result, save_text
from bertender.measure.accuracy import evaluate
from bertender.metrics.scores import Score
from bertender.models.opening import open_classifier
from bertender.pipeline.recorded_task import recorded_task
from bertender.tasks.loading import sample
from bertender.tasks.task import ChosenOn, Split, Task
from bertender.text.example import Example
from distill.distillation.distiller import DistillConfig, distill

__all__ = ["ControlBenchmark", "TrainedStudent", "chosen_lengths"]


class TrainedStudent(Record):
    """A student of a way and a seed."""

    way: str
    seed: int
    processor_s: float = Field(description="of training, the teacher's part included")
    choice: Score = Field(description="on the texts to choose by")
    score: Score
    predictions: tuple[int, ...] = Field(description="label numbers of the held-out texts")


class ControlBenchmark(Record):
    """All students of one teacher on one task."""

    task: str
    metric: str
    labels: tuple[int, ...] = Field(description="true label numbers of the held-out texts")
    label_names: tuple[str, ...]
    train_texts: int
    teacher: Score
    shared: dict[str, Any] = Field(description="settings that all ways share")
    student: str | None = Field(None, description="encoder that the students are made of")
    further_texts: int = Field(0, description="of the training file, whose labels nobody reads")
    chosen_on: ChosenOn
    environment: Environment
    students: tuple[TrainedStudent, ...]


def _student(
    teacher: Artifact, task: Task, way: str, config: DistillConfig, work: Path
) -> TrainedStudent:
    """Return a student, trained and scored now or before."""
    out = work / f"{way}-{config.seed}"
    make = timed(partial(distill, teacher, task), work / "cache" / way)
    artifact = made_once(out, config, task, teacher, make)
    classifier = open_classifier(artifact)
    score, predictions = evaluate(classifier, task.dev, task.metric)
    choice, _ = evaluate(classifier, task.choices, task.metric)
    return TrainedStudent(
        way=way,
        seed=config.seed,
        processor_s=seconds_of(artifact),
        choice=choice,
        score=score,
        predictions=tuple(predictions.tolist()),
    )


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    work: Annotated[Path, typer.Option(help="folder for the students")],
    out: OptionalOutFile = None,
    ways: Annotated[str, typer.Option(help="by commas; all by default")] = "",
    seeds: Annotated[int, typer.Option(help="students of each way")] = 3,
    epochs: Annotated[int, typer.Option(help="of the last phase")] = 4,
    learning_rate: Annotated[float, typer.Option(help="of the last phase")] = 1e-4,
    layers: Annotated[int, typer.Option(help="of each student")] = 3,
    student: Annotated[str | None, typer.Option(help="encoder that students are made of")] = None,
    further_texts: Annotated[
        int,
        typer.Option(
            min=0, help="of the training file, at most, that the teacher did not learn from"
        ),
    ] = 0,
) -> None:
    """Train by every way, and write what the students score."""
    show_progress()
    shared = {"epochs": epochs, "learning_rate": learning_rate, "layers": layers, "batch_size": 32}
    source = Artifact.load(teacher)
    names: dict[str, Any] = {ENCODER: source.card.config.get("teacher"), STUDENT: student}
    if further_texts:
        names[FURTHER_TEXTS] = work / "further-texts.jsonl"
    chosen = _chosen(ways, names)
    task = recorded_task(source, {})
    further = _further_texts(source, task, further_texts)
    if further_texts:
        _save_texts(further, task, names[FURTHER_TEXTS])
    students: list[TrainedStudent] = []
    for seed in range(seeds):
        for name in _still_needed(chosen, students):
            config = WAYS[name].config(shared, seed, names)
            students.append(_student(source, task, name, config, work))
            typer.echo(_line(students[-1]))
    if out is not None:
        score, _ = evaluate(open_classifier(source), task.dev, task.metric)
        benchmark = ControlBenchmark(
            task=task.name,
            metric=task.metric,
            labels=task.dev.label_ids,
            label_names=task.labels,
            train_texts=len(task.train),
            teacher=score,
            shared=shared,
            student=student and Path(student).name,
            further_texts=len(further),
            chosen_on=task.chosen_on,
            environment=environment(),
            students=tuple(students),
        )
        save_result(benchmark, out)


def chosen_lengths(students: Sequence[TrainedStudent]) -> dict[str, str]:
    """Return the length that stands for each control: the best on the texts to choose by.

    By the mean over the seeds that all lengths of the control have.
    """
    chosen = {}
    for control in CONTROLS:
        scores: dict[str, dict[int, float]] = {}
        for each in students:
            if each.way in WAYS and WAYS[each.way].control == control:
                scores.setdefault(each.way, {})[each.seed] = each.choice.value
        if scores:
            seeds = set.intersection(*({*by_seed} for by_seed in scores.values()))
            means = {
                way: statistics.mean(by_seed[seed] for seed in seeds)
                for way, by_seed in scores.items()
            }
            chosen[control] = max(means, key=means.__getitem__)
    return chosen


def _still_needed(ways: Sequence[str], students: Sequence[TrainedStudent]) -> list[str]:
    """Return the ways without the lengths of controls that an earlier seed did not choose."""
    chosen = chosen_lengths(students)
    return [way for way in ways if chosen.get(WAYS[way].control or "", way) == way]


def _line(student: TrainedStudent) -> str:
    return (
        f"{student.way} {student.seed}: choice {student.choice.value:.4f} "
        f"score {student.score.value:.4f} in {student.processor_s:.0f} s"
    )


def _further_texts(teacher: Artifact, task: Task, count: int) -> Sequence[Example]:
    """Return so many texts of the training file that the teacher did not learn from.

    Which ones does not depend on their labels.
    """
    if not count:
        return ()
    whole, learned = recorded_task(teacher, {"max_train": None}).train, {*task.train.examples}
    left = tuple(text for text in whole.examples if text not in learned)
    return sample(Split(left, (0,) * len(left)), count).examples


def _save_texts(texts: Sequence[Example], task: Task, out: Path) -> None:
    """Write texts to a file, in an order that does not depend on how many there are.

    Raises:
        ConfigError: there are none, or the file has others, which students have learned from.
    """
    rows = (json.dumps(dict(zip(task.text_columns, text, strict=True))) for text in texts)
    content = "".join(f"{row}\n" for row in sorted(rows))
    if not content:
        raise ConfigError("--further-texts: the teacher learned from all of the training file.")
    if out.exists() and out.read_text(encoding="utf-8") != content:
        raise ConfigError(f"{out} has other texts, of another run. Give another --work.")
    save_text(content, out)


def _chosen(ways: str, names: Mapping[str, Any]) -> Sequence[str]:
    """Return the ways that are named, or all of such students that there is all for.

    Raises:
        UnknownNameError: a way is not there.
        ConfigError: none is left, or what one needs is missing.
    """
    of_student = names[STUDENT] is not None
    able = [
        name
        for name, way in WAYS.items()
        if way.is_of_student == of_student
        and (FURTHER_TEXTS in names or FURTHER_TEXTS not in way.settings.values())
    ]
    chosen = names_in("--ways", ways, able) or able
    for name in chosen:
        if name not in WAYS:
            raise UnknownNameError("way", name, WAYS)
        if name not in able:
            raise ConfigError(
                f"--ways {name}: not with these settings. Known: {', '.join(able)}; others go "
                "with --student, or without it, or with --further-texts."
            )
    if FURTHER_TEXTS in names and not any(
        FURTHER_TEXTS in WAYS[name].settings.values() for name in chosen
    ):
        raise ConfigError("--further-texts: none of these ways learns from them. Leave it out.")
    return chosen
