"""Cost of distilling as usual, and with cheaper settings, one way after another.

    python -m benchmarks.training TEACHER --work DIR --out FILE.json [--seeds 3] [--max-train 4000]

The rows of WAYS take turns, seed by seed, so that a drift of the machine hits all. Seeds that
FILE.json has already, made with the same settings, are not made again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from pydantic import Field

from benchmarks.common.resuming import continued
from benchmarks.common.saving import NoisyFlag, check_noisy_out, save_benchmark
from benchmarks.training.ways_to_distil import WAYS, TrainingRun, distil_by
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.machine import Environment, environment
from bertender.core.progress import show_progress
from bertender.recipes.recorded_task import recorded_task
from bertender.tasks.task import Split, Task
from bertender.text.tokenizer import load_tokenizer, longest_input
from bertender.training.config import computes_in_bf16
from bertender.training.examples import token_dataset
from distill.distillation.distill_config import DistillConfig

__all__ = ["TrainingBenchmark", "begun", "run", "take_turns", "without_further"]

WARM_UP_TEXTS = 128
NOTHING = Split((), ())


class TrainingBenchmark(Record):
    """Every way with every seed, and under what."""

    teacher: str = Field("", description="its digest; of earlier files unknown")
    task: str
    metric: str
    labels: tuple[int, ...] = Field(description="true label numbers of the held-out texts")
    further_labels: tuple[int, ...] = Field(
        (), description="of texts of the training file that no student has read"
    )
    further_from: Literal["train", "selection"] = Field(
        "train", description="texts of `train` the teacher has read, those of `selection` no model"
    )
    texts: int = Field(description="training texts, a part of the task's own")
    tokens: float = Field(description="of a training text, on average")
    threads: int
    bf16: bool = Field(description="whether ways with precision auto computed in it")
    config: dict[str, Any] = Field(description="what the ways share, of DistillConfig")
    environment: Environment
    runs: tuple[TrainingRun, ...]


def take_turns(
    teacher: Artifact,
    task: Task,
    further: Split,
    config: DistillConfig,
    seeds: Sequence[int],
    work: Path,
    noisy: bool = False,
) -> Iterator[tuple[TrainingRun, ...]]:
    """Distil by every way with each seed, after a short run of each that nobody times.

    Args:
        teacher: what the students learn from.
        task: training and held-out texts.
        further: more texts that no student learns from, for the accuracy alone.
        config: what the ways share.
        seeds: of the students.
        work: folder of the checkpoints.
        noisy: train on a busy machine as well.

    Yields:
        The runs of a seed.
    """
    few = replace(task, train=task.train.first(WARM_UP_TEXTS))
    names = list(WAYS)
    for name in names if seeds else ():
        distil_by(name, teacher, few, NOTHING, config.model_copy(update={"epochs": 1}), work, True)
    for seed in seeds:
        seeded, first = config.model_copy(update={"seed": seed}), seed % len(names)
        turn = (*names[first:], *names[:first])
        yield tuple(distil_by(name, teacher, task, further, seeded, work, noisy) for name in turn)


def without_further(task: Task, max_train: int, count: int) -> tuple[Task, Split]:
    """Return a task with its training texts, and texts that no student reads.

    They are of those set apart, which the teacher has not read either, where there are any.
    """
    rest = Split(task.train.examples[max_train:], task.train.label_ids[max_train:])
    apart = task.chosen_on == "selection"
    further = task.selection.first(count) if apart else rest.first(count)
    return replace(task, train=task.train.first(max_train)), further


def begun(
    teacher: Artifact, task: Task, further: Split, config: DistillConfig
) -> TrainingBenchmark:
    """Return a benchmark without runs."""
    tokenizer = load_tokenizer(teacher.path, config.max_length)
    tokens = token_dataset(task.train, tokenizer).lengths
    shared = config.model_dump(
        mode="json", exclude={"seed", "precision", "batches", "pool_batches", "teacher_cache_mb"}
    )
    return TrainingBenchmark(
        teacher=teacher.digest,
        task=task.name,
        metric=task.metric,
        labels=task.dev.label_ids,
        further_labels=further.label_ids,
        further_from="selection" if task.chosen_on == "selection" else "train",
        texts=len(task.train),
        tokens=sum(tokens) / len(tokens),
        threads=torch.get_num_threads(),
        bf16=computes_in_bf16(config.model_copy(update={"precision": "auto"})),
        config={**shared, "max_length": longest_input(tokenizer)},
        environment=environment(),
        runs=(),
    )


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    work: Annotated[Path, typer.Option(help="a folder for checkpoints, which go again")],
    out: Annotated[Path, typer.Option(help="the JSON to write, or to go on with")],
    seeds: Annotated[int, typer.Option(help="students of each way")] = 3,
    max_train: Annotated[int, typer.Option(help="training texts")] = 4000,
    further_texts: Annotated[int, typer.Option(help="of the training file, only scored")] = 0,
    epochs: Annotated[int, typer.Option(help="of each student")] = 2,
    learning_rate: Annotated[float, typer.Option(help="of each student")] = 1e-4,
    batch_size: Annotated[int, typer.Option(help="texts")] = 32,
    layers: Annotated[int, typer.Option(help="of each student")] = 3,
    threads: Annotated[int, typer.Option(help="of PyTorch; 0: every core")] = 0,
    noisy: NoisyFlag = False,
) -> None:
    """Distil by every way, and write what each took and scored."""
    show_progress()
    check_noisy_out(noisy, out)
    torch.set_num_threads(threads or environment().cores)
    source = Artifact.load(teacher)
    limits = {"max_train": max_train + further_texts, "max_select": max(further_texts, 1)}
    task, further = without_further(recorded_task(source, limits), max_train, further_texts)
    config = DistillConfig(
        method="distilbert",
        weights={"cosine": 0},
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        layers=layers,
        vocab_size="all",
    )
    work.mkdir(parents=True, exist_ok=True)
    benchmark = continued(begun(source, task, further, config), out, "runs")
    made = Counter(each.seed for each in benchmark.runs if each.way in WAYS)
    whole = tuple(each for each in benchmark.runs if made[each.seed] == len(WAYS))
    benchmark = benchmark.model_copy(update={"runs": whole})  # ways are compared side by side
    missing = [seed for seed in range(seeds) if made[seed] < len(WAYS)]
    for runs in take_turns(source, task, further, config, missing, work, noisy):
        for each in runs:
            typer.echo(f"{each.way} {each.seed}: {each.seconds:.1f} s, {each.score.value:.4f}")
        benchmark = benchmark.model_copy(update={"runs": (*benchmark.runs, *runs)})
        save_benchmark(benchmark, out)
