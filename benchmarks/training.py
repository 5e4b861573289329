"""What distilling costs four ways: as usual, and with what makes it cheaper, one after another.

    python -m benchmarks.training TEACHER --work DIR --out FILE.json [--seeds 3] [--max-train 4000]

Every way trains the same student from the same teacher, texts, loss, seeds and number of steps on
the one training path. They take turns, seed by seed, so that a drift of the machine hits all.
The loss is `distilbert` without its cosine: soft and hard labels, the commonest one, which asks
nothing of the teacher that only one of the ways could make cheap.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import torch
import typer
from pydantic import Field
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.cache import CACHE_VARIABLE
from bertender.core.config import Record
from bertender.core.environment import Environment, environment
from bertender.core.examples import SEQUENCE_COLUMNS, TokenDataset
from bertender.core.predictor import Classifier, TorchPredictor
from bertender.core.progress import show_progress
from bertender.core.text import Tokenize, load_tokenizer
from bertender.core.timing import Stopwatch
from bertender.core.training import computes_in_bf16
from bertender.measure.accuracy import evaluate
from bertender.stages import recorded_task
from bertender.steps import save_result
from bertender.tasks.metrics import Score
from bertender.tasks.task import Split, Task
from distill.data import fitting_tokenizer, token_dataset
from distill.distiller import DistillConfig
from distill.kept import choose_kept, student_examples
from distill.phases import task_objective, train_phases
from distill.sources import Teacher, find_start

__all__ = ["WAYS", "TrainingBenchmark", "TrainingRun", "Way", "compare_ways", "padded", "run"]

WARM_UP_TEXTS = 128
NOTHING = Split((), ())


@dataclass(frozen=True)
class Way:
    """A row of WAYS."""

    summary: str
    padded: bool
    """Random batches, every text as long as the longest that is allowed."""
    keeps: bool
    """The teacher's answers are computed once; else the teacher runs in each step."""
    precision: Literal["auto", "fp32"]
    batches: Literal["sorted", "random"] = "sorted"


WAYS: Mapping[str, Way] = {
    "usual": Way(
        "the teacher in each step, random batches padded to `max_length`, fp32",
        padded=True,
        keeps=False,
        precision="fp32",
        batches="random",
    ),
    "random": Way(
        "the teacher's answers kept, random batches padded to their longest, bf16 where the "
        "machine has it: `bertender distill --batches random`",
        padded=False,
        keeps=True,
        precision="auto",
        batches="random",
    ),
    "buckets": Way(
        "the teacher in each step, batches of like length, fp32",
        padded=False,
        keeps=False,
        precision="fp32",
    ),
    "kept": Way(
        "the teacher's answers kept, batches of like length, bf16 where the machine has it: "
        "what `bertender distill` does",
        padded=False,
        keeps=True,
        precision="auto",
    ),
}
"""The first is what the others are compared with."""


class TrainingRun(Record):
    """One student: a way with a seed."""

    way: str
    seed: int
    kept_s: float = Field(description="computing the teacher's answers, once for all epochs")
    epoch_s: tuple[float, ...] = Field(description="raw: each epoch's training, without scoring")
    teacher_s: float = Field(description="in the teacher, before and in the epochs")
    score: Score
    predictions: tuple[int, ...] = Field(description="label numbers of the held-out texts")
    further_predictions: tuple[int, ...] = Field((), description="of the further texts")

    @property
    def seconds(self) -> float:
        """What the student took, answers and all epochs together."""
        return self.kept_s + sum(self.epoch_s)


class TrainingBenchmark(Record):
    """Every way with every seed, and under what."""

    task: str
    metric: str
    labels: tuple[int, ...] = Field(description="true label numbers of the held-out texts")
    further_labels: tuple[int, ...] = Field(
        (), description="of texts of the training file that no student has read"
    )
    texts: int = Field(description="training texts, a part of the task's own")
    tokens: float = Field(description="of a training text, on average")
    threads: int
    bf16: bool = Field(description="whether the way with precision auto computed in it")
    config: dict[str, Any] = Field(description="what the ways share, of DistillConfig")
    environment: Environment
    runs: tuple[TrainingRun, ...]


def padded(examples: TokenDataset, length: int) -> TokenDataset:
    """Return the examples all of one length, which makes the planned batches random ones."""

    def filled(name: str, row: list[int]) -> list[int]:
        return [*row, *[examples.padding.value(name)] * (length - len(row))]

    columns = {
        name: [filled(name, row) for row in column] if name in SEQUENCE_COLUMNS else column
        for name, column in examples.columns.items()
    }
    return TokenDataset(columns, examples.padding)


def compare_ways(
    teacher: Artifact, task: Task, further: Split, config: DistillConfig, seeds: int, work: Path
) -> TrainingBenchmark:
    """Distil by every way with every seed, after a short run of each that nobody times.

    Args:
        teacher: what the students learn from.
        task: training and held-out texts.
        further: more texts that no student learns from, for the accuracy alone.
        config: what the ways share.
        seeds: students of each way.
        work: folder of the checkpoints.
    """
    few = replace(task, train=task.train.first(WARM_UP_TEXTS))
    for name in WAYS:
        _distil(name, teacher, few, NOTHING, config.model_copy(update={"epochs": 1}), work)
    names = list(WAYS)
    runs = [
        _distil(name, teacher, task, further, config.model_copy(update={"seed": seed}), work)
        for seed in range(seeds)
        for name in (*names[seed % len(names) :], *names[: seed % len(names)])
    ]
    tokens = token_dataset(task.train, load_tokenizer(teacher.path), config.max_length).lengths
    shared = config.model_dump(
        mode="json", exclude={"seed", "precision", "batches", "teacher_cache_mb"}
    )
    return TrainingBenchmark(
        task=task.name,
        metric=task.metric,
        labels=task.dev.label_ids,
        further_labels=further.label_ids,
        texts=len(task.train),
        tokens=sum(tokens) / len(tokens),
        threads=torch.get_num_threads(),
        bf16=computes_in_bf16(config.model_copy(update={"precision": "auto"})),
        config=shared,
        environment=environment(),
        runs=tuple(runs),
    )


def _distil(
    name: str, artifact: Artifact, task: Task, further: Split, config: DistillConfig, work: Path
) -> TrainingRun:
    """Train a student one way; nothing that another run has kept is used."""
    way = WAYS[name]
    given = {
        "precision": way.precision,
        "batches": way.batches,
        "teacher_cache_mb": config.teacher_cache_mb * way.keeps,
    }
    with TemporaryDirectory(dir=work) as folder:
        os.environ[CACHE_VARIABLE] = str(Path(folder) / "cache")
        gc.collect()
        run = _Run(Teacher.load(artifact, task), task, config.model_copy(update=given))
        examples = run.examples()
        kept_s = run.clock.seconds
        student = run.train(
            padded(examples, config.max_length) if way.padded else examples, Path(folder), name
        )
    score, predictions = run.scored(student, task.dev)
    _, further_predictions = run.scored(student, further) if len(further) else (None, ())
    return TrainingRun(
        way=name,
        seed=config.seed,
        kept_s=kept_s,
        epoch_s=tuple(run.epoch_s),
        teacher_s=run.clock.seconds,
        score=score,
        predictions=predictions,
        further_predictions=further_predictions,
    )


class _Run:
    """A student on its way, and its clocks: `distill.distiller.distill` without an artifact."""

    def __init__(self, teacher: Teacher, task: Task, config: DistillConfig) -> None:
        self.teacher, self.task, self.config = teacher, task, config
        self.method = config.changed_method()
        self.bf16 = computes_in_bf16(config)
        self.clock = Stopwatch()
        self.epoch_s: list[float] = []
        self.began = 0.0
        torch.manual_seed(config.seed)
        self.start = find_start(teacher, self.method, None)
        shape = config.shape(self.method, self.start.model.config.num_hidden_layers)
        self.models = self.method.student(self.start.model, shape), teacher.model

    def examples(self) -> TokenDataset:
        """Tokenise the texts, and compute what the config allows to keep."""
        teachers, texts = [self.teacher], len(self.task.train)
        limits = self.bf16, self.config.teacher_cache_mb
        kept = choose_kept(self.method, self.models[0], teachers, self.start, texts, *limits)
        tokenizer = fitting_tokenizer(self.start.source, self.models[0])
        given = (self.start, tokenizer, self.task, self.config, self.clock)
        return student_examples(kept, teachers, *given)

    def train(self, examples: TokenDataset, folder: Path, name: str) -> PreTrainedModel:
        objective = partial(task_objective, *self.models, self.bf16, self.clock)
        self.began = time.perf_counter()
        student, _ = train_phases(
            self.method,
            *self.models,
            examples,
            objective,
            self.config,
            folder,
            description=f"{name}, seed {self.config.seed}",
            score=self._epoch_ends,
        )
        return student

    def _epoch_ends(self, trainee: Any) -> dict[str, float]:
        now = time.perf_counter()
        self.epoch_s.append(now - self.began)
        self.began = now
        return {}

    def scored(self, student: PreTrainedModel, texts: Split) -> tuple[Score, tuple[int, ...]]:
        tokenizer = fitting_tokenizer(self.start.source, student)
        encode = Tokenize(tokenizer, self.config.max_length)
        predictor = TorchPredictor(student)
        labels, parameters = self.task.labels, student.num_parameters()
        classifier = Classifier("student", labels, encode, predictor, parameters)
        score, predictions = evaluate(classifier, texts, self.task.metric)
        return score, tuple(predictions.tolist())


def run(
    teacher: Annotated[Path, typer.Argument(help="artifact of the teacher")],
    work: Annotated[Path, typer.Option(help="a folder for checkpoints, which go again")],
    out: Annotated[Path | None, typer.Option(help="the JSON to write")] = None,
    seeds: Annotated[int, typer.Option(help="students of each way")] = 3,
    max_train: Annotated[int, typer.Option(help="training texts")] = 4000,
    further_texts: Annotated[int, typer.Option(help="of the training file, only scored")] = 0,
    epochs: Annotated[int, typer.Option(help="of each student")] = 2,
    learning_rate: Annotated[float, typer.Option(help="of each student")] = 1e-4,
    batch_size: Annotated[int, typer.Option(help="texts")] = 32,
    layers: Annotated[int, typer.Option(help="of each student")] = 3,
    threads: Annotated[int, typer.Option(help="of PyTorch; 0: every core")] = 0,
) -> None:
    """Distil four ways, and write what each took and scored."""
    show_progress()
    torch.set_num_threads(threads or environment().cores)
    source = Artifact.load(teacher)
    task = recorded_task(source, {"max_train": max_train + further_texts})
    further = Split(task.train.examples[max_train:], task.train.label_ids[max_train:])
    task = replace(task, train=task.train.first(max_train))
    config = DistillConfig(
        method="distilbert",
        weights={"cosine": 0},
        epochs=epochs,
        learning_rate=learning_rate,
        batch_size=batch_size,
        layers=layers,
    )
    work.mkdir(parents=True, exist_ok=True)
    benchmark = compare_ways(source, task, further, config, seeds, work)
    for each in benchmark.runs:
        typer.echo(f"{each.way} {each.seed}: {each.seconds:.1f} s, {each.score.value:.4f}")
    if out is not None:
        save_result(benchmark, out)


if __name__ == "__main__":
    typer.run(run)
