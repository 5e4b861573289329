"""Compresses a teacher by every system at equal processor time; scores and times the results.

    python -m benchmarks.compression TEACHER --work DIR --out FILE.json [--minutes 3] [--seeds 3]
        [--students SYSTEM=ENCODER,SYSTEM=ENCODER] [--systems A,B] [--processes 3] [--untimed]

Each row of SYSTEMS trains for the same processor time, the teacher's part included: probes on few
of the labelled texts say how many texts, or epochs over the labelled ones, that time holds; where
it does not hold the labelled ones once, a system learns from the first of them. Texts without
labels are those that come with the task, or of `--unlabelled FILE`; without any, the labelled
ones are seen more often. What pre-trained an encoder of `--students` is not of that time. The first
seed of each is exported and quantized (dynamic 8 bits), and all graphs are timed with the
teacher's, in turns and in one runtime. With `--untimed`, no graphs are made: for trainings on a
GPU, whose students are as fast as any others of their shape.

Everything that is made stays in `--work` and is not made again, graphs and scores included. So
several processes may share the work (`--systems`, without `--out`), and a last call, which needs
an otherwise idle machine, scores and times what is there. A system that cannot be made from this
teacher is listed with the reason. With OMP_NUM_THREADS=1, the processor's time is that of the
clock on an otherwise idle core.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.common.making import seconds_of
from benchmarks.common.options import OptionalOutFile, names_in
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.compression.graphs import Graphs, graphs_of
from benchmarks.compression.records import CompressionBenchmark, TrainedSystem
from benchmarks.compression.systems import SYSTEMS
from benchmarks.compression.training import Sources, Trainer, pretrained_by
from benchmarks.students.measuring import check_scorable, scored_students
from bertender.comparison.compare import compare
from bertender.comparison.records import CompareConfig, Comparison
from bertender.core.artifact import Artifact
from bertender.core.errors import (
    AccuracyError,
    ConfigError,
    GateError,
    ModelError,
    ParityError,
)
from bertender.core.machine_load import check_load_now
from bertender.core.progress import show_progress
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Task

__all__ = ["run"]

REFUSALS = (AccuracyError, ConfigError, GateError, ModelError, ParityError)
UNTIMED = Graphs({})
CHOICE_TEXTS = 500
"""Texts to choose by, which choose the control alone; the others would take most of the scoring."""
TEACHER_ROW = ""
"""Stands for the teacher among the graphs; no system has this name."""


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    work: Annotated[Path, typer.Option(help="folder for all that is made")],
    out: OptionalOutFile = None,
    systems: Annotated[str, typer.Option(help="by commas; all by default")] = "",
    minutes: Annotated[float, typer.Option(min=0.01, help="processor time of a training")] = 3.0,
    seeds: Annotated[int, typer.Option(min=1, help="models of each system")] = 3,
    learning_rate: Annotated[float, typer.Option(help="or the method's own, where higher")] = 5e-5,
    unlabelled: Annotated[
        Path | None, typer.Option(help="file of texts without labels; by default the task's")
    ] = None,
    students: Annotated[
        str, typer.Option(help="SYSTEM=ENCODER by commas, of systems that start from one")
    ] = "",
    processes: Annotated[
        int | None, typer.Option(min=1, help="repetitions of the timing; 3 by default")
    ] = None,
    untimed: Annotated[bool, typer.Option(help="no graphs; with --out, scores alone")] = False,
    noisy: NoisyFlag = False,
) -> None:
    """Train by every system, and write what comes of it."""
    show_progress()
    explicit = {"noisy": noisy, "processes": processes}
    timing = {name: value for name, value in explicit.items() if value}
    if untimed or out is None:
        _check_no_settings(timing)
    if out is not None:
        check_noisy_out(noisy, out)
    encoders = _encoders(students)
    chosen, source = _chosen(systems, encoders), Artifact.load(teacher)
    task = recorded_task(source, {})
    shared = {"learning_rate": learning_rate, "batch_size": 32}
    sources = Sources(teacher, shared, encoders, unlabelled)
    trainer = Trainer(source, task, 60 * minutes, sources, work)
    check_scorable(source, task)
    trainer.check(chosen)
    models, absent = _trained(trainer, chosen, seeds)
    timed = {} if untimed else {TEACHER_ROW: source, **_timed_models(models)}
    graphs = {name: graphs_of(each, task, work) for name, each in timed.items()}
    if out is None:
        return
    if not untimed:
        _check_timeable(graphs[TEACHER_ROW])
    result = _scored(trainer, models, graphs, absent)
    if not untimed:
        speeds = _speeds(graphs, task, CompareConfig.parse(timing))
        result = result.model_copy(update={"speeds": speeds})
    save_benchmark(result, out)


def _check_no_settings(timing: Mapping[str, object]) -> None:
    """Raise ConfigError for settings of a timing where nothing is timed."""
    if timing:
        options = ", ".join(f"--{name}" for name in timing)
        raise ConfigError(
            f"{options}: nothing is timed with --untimed, or without --out. Leave {options} out."
        )


def _check_timeable(of_teacher: Graphs) -> None:
    """Raise ModelError where the teacher has no graph that others are compared with."""
    if "float32" not in of_teacher.names:
        raise ModelError(f"the teacher, which others are compared with: {of_teacher.refused}")


def _speeds(graphs: Mapping[str, Graphs], task: Task, config: CompareConfig) -> Comparison:
    """Time the graphs of the teacher, which are the first, and of each first seed."""
    if not config.noisy:
        check_load_now()
    timed = [each for made in graphs.values() for each in made.by_precision.values()]
    return compare(timed, task, config)


def _scored(
    trainer: Trainer,
    models: Mapping[str, Sequence[Artifact]],
    graphs: Mapping[str, Graphs],
    absent: Mapping[str, str],
) -> CompressionBenchmark:
    """Score all models."""
    teacher, task, sources = trainer.teacher, trainer.task, trainer.sources
    scoring = replace(task, selection=task.selection.first(CHOICE_TEXTS))
    students = [each for own in models.values() for each in own]
    return CompressionBenchmark(
        budget_s=trainer.budget_s,
        learning_rate=sources.shared["learning_rate"],
        labelled_texts=len(task.train),
        unlabelled=_texts_without_labels(trainer),
        encoders={name: pretrained_by(each) for name, each in sources.encoders.items()},
        teacher_graphs=graphs.get(TEACHER_ROW, UNTIMED).names,
        systems=tuple(
            _record_of(name, own, graphs.get(name, UNTIMED), trainer)
            for name, own in models.items()
        ),
        absent=dict(absent),
        scores=scored_students(teacher, scoring, students, trainer.work / "scores"),
    )


def _texts_without_labels(trainer: Trainer) -> str:
    if trainer.sources.unlabelled is not None:
        return trainer.sources.unlabelled.name
    return f"those of {trainer.task.name}" if trainer.unlabelled_texts else "none"


def _timed_models(models: Mapping[str, Sequence[Artifact]]) -> dict[str, Artifact]:
    """Return the first model of each system whose graphs are timed."""
    return {name: own[0] for name, own in models.items() if SYSTEMS[name].is_timed}


def _record_of(
    name: str, models: Sequence[Artifact], graphs: Graphs, trainer: Trainer
) -> TrainedSystem:
    extent = trainer.extent(name)
    return TrainedSystem(
        name=name,
        labelled_texts=extent.labelled_texts,
        epochs=extent.epochs,
        unlabelled_texts=extent.unlabelled_texts,
        processor_s=tuple(map(seconds_of, models)),
        graphs=graphs.names,
        refused=graphs.refused and trainer.without_folders(graphs.refused),
    )


def _trained(
    trainer: Trainer, chosen: Sequence[str], seeds: int
) -> tuple[dict[str, list[Artifact]], dict[str, str]]:
    """Return each system's models by seed, and why others have none."""
    models: dict[str, list[Artifact]] = {}
    absent: dict[str, str] = {}
    for seed in range(seeds):
        for name in chosen:
            if name in absent:
                continue
            try:
                model = trainer.trained(name, seed)
            except REFUSALS as error:
                absent[name] = trainer.without_folders(error)
                models.pop(name, None)
                typer.echo(f"{name} is left out: {error}")
            else:
                models.setdefault(name, []).append(model)
                typer.echo(f"{name} {seed}: {seconds_of(model):.0f} s")
    return models, absent


def _encoders(students: str) -> dict[str, str]:
    """Return the encoder of each system of `--students`.

    Raises:
        UnknownNameError: a system is not there.
        ConfigError: a part is not SYSTEM=ENCODER, its system has no encoder, or one comes with two.
    """
    starting = [name for name, row in SYSTEMS.items() if row.of_encoder]
    encoders: dict[str, str] = {}
    for part in names_in("--students", students):
        name, _, encoder = map(str.strip, part.partition("="))
        if not (encoder and SYSTEMS[name].of_encoder):
            raise ConfigError(
                f"--students {part!r}: give SYSTEM=ENCODER, as pd=all-MiniLM-L6-v2. Systems that "
                f"start from one: {', '.join(starting)}."
            )
        if name in encoders:
            raise ConfigError(f"--students gives {name} two encoders. Leave one out.")
        encoders[name] = encoder
    return encoders


def _chosen(systems: str, encoders: Mapping[str, str]) -> list[str]:
    """Return the systems that are asked for, or all that there is an encoder for.

    Raises:
        UnknownNameError: one is not there.
        ConfigError: none is asked for, one needs an encoder, or an encoder no system.
    """
    asked = names_in("--systems", systems, SYSTEMS)
    for name in asked:
        if SYSTEMS[name].of_encoder and name not in encoders:
            raise ConfigError(f"--systems {name}: give its encoder, --students {name}=ENCODER.")
    if asked and (unused := encoders.keys() - asked):
        names = ", ".join(sorted(unused))
        raise ConfigError(f"--students {names}: not one of --systems. Add it, or leave it out.")
    return asked or [
        name for name, row in SYSTEMS.items() if name in encoders or not row.of_encoder
    ]


if __name__ == "__main__":
    typer.run(run)
