"""WAYS: distilling as usual, and with what makes it cheaper.

Every way trains the same student from the same teacher, texts, loss, seeds and number of steps on
the one training path. The loss is `distilbert` without its cosine: soft and hard labels, the
commonest one, which asks nothing of the teacher that only one of the ways could make cheap.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from pydantic import Field
from transformers import PreTrainedModel

from bertender.core.artifact import Artifact
from bertender.core.cache import CACHE_VARIABLE
from bertender.core.config import Record
from bertender.core.timing import Stopwatch
from bertender.measure.accuracy import evaluate
from bertender.measure.load import MachineLoad, watched_load
from bertender.metrics.scores import Score
from bertender.models.predictor import Classifier, TorchPredictor
from bertender.tasks.task import Split, Task
from bertender.text.batch import Tokenize
from bertender.training.config import POOL_BATCHES, computes_in_bf16
from bertender.training.examples import SEQUENCE_COLUMNS, TokenDataset
from distill.data import fitting_tokenizer
from distill.distillation.cached_outputs import choose_kept, student_examples
from distill.distillation.distiller import DistillConfig
from distill.distillation.phases import task_objective, train_phases
from distill.distillation.start import find_start
from distill.teachers.teacher import Teacher

__all__ = ["WAYS", "TrainingRun", "Way", "distil_by", "padded"]


@dataclass(frozen=True)
class Way:
    """A row of WAYS."""

    summary: str
    padded: bool
    """Every text as long as the longest that is allowed."""
    keeps: bool
    """The teacher's answers are computed once; else the teacher runs in each step."""
    precision: Literal["auto", "fp32"]
    batches: Literal["sorted", "random", "pooled"] = "sorted"
    """Of like length, or of any, or of like length inside random pools."""
    pool_batches: int = POOL_BATCHES


POOL_SIZES = (4, 8, 16, 50)
"""In batches: the smaller, the nearer to random ones, and the more padding."""

WAYS: Mapping[str, Way] = {
    "usual": Way(
        "the teacher in each step, random batches padded to `max_length`, fp32",
        padded=True,
        keeps=False,
        precision="fp32",
        batches="random",
    ),
    "random": Way(
        "cached teacher outputs, random batches padded to their longest, bf16 where the "
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
        "cached teacher outputs, batches of like length, bf16 where the machine has it: "
        "`bertender distill --batches sorted`",
        padded=False,
        keeps=True,
        precision="auto",
    ),
    **{
        f"pooled-{size}": Way(
            "cached teacher outputs, batches of like length inside random pools of about "
            f"{size} batches, one pool after the other, bf16 where the machine has it: "
            f"`bertender distill --batches pooled --pool-batches {size}`",
            padded=False,
            keeps=True,
            precision="auto",
            batches="pooled",
            pool_batches=size,
        )
        for size in POOL_SIZES
    },
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
    load: MachineLoad | None = Field(
        None, description="while it was trained; of earlier files not recorded"
    )

    @property
    def seconds(self) -> float:
        """What the student took, answers and all epochs together."""
        return self.kept_s + sum(self.epoch_s)


def padded(examples: TokenDataset, length: int) -> TokenDataset:
    """Return the examples, all of one length."""

    def filled(name: str, row: list[int]) -> list[int]:
        return [*row, *[examples.padding.value(name)] * (length - len(row))]

    columns = {
        name: [filled(name, row) for row in column] if name in SEQUENCE_COLUMNS else column
        for name, column in examples.columns.items()
    }
    return TokenDataset(columns, examples.padding)


def distil_by(
    name: str,
    artifact: Artifact,
    task: Task,
    further: Split,
    config: DistillConfig,
    work: Path,
    noisy: bool,
) -> TrainingRun:
    """Train a student one way; nothing that another run has kept is used.

    Args:
        name: a row of WAYS.
        artifact: the teacher.
        task: training and held-out texts.
        further: more texts that the student does not learn from, for the accuracy alone.
        config: what the ways share.
        work: a folder for checkpoints, which go again.
        noisy: train on a busy machine as well.

    Raises:
        MachineBusyError: other work disturbs the times, and noisy ones are not wanted.
    """
    way = WAYS[name]
    given = {
        "precision": way.precision,
        "batches": way.batches,
        "pool_batches": way.pool_batches,
        "teacher_cache_mb": config.teacher_cache_mb * way.keeps,
    }
    with TemporaryDirectory(dir=work) as folder:
        os.environ[CACHE_VARIABLE] = str(Path(folder) / "cache")
        gc.collect()
        run = _Run(Teacher.load(artifact, task), task, config.model_copy(update=given))
        with watched_load(noisy) as meter:
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
        load=meter.load,
    )


class _Run:
    """A student on its way, and its clocks: `distill` without an artifact."""

    def __init__(self, teacher: Teacher, task: Task, config: DistillConfig) -> None:
        self.teacher, self.task, self.config = teacher, task, config
        self.method = config.changed_method()
        self.bf16 = computes_in_bf16(config)
        self.clock = Stopwatch()
        self.epoch_s: list[float] = []
        self.began = 0.0
        torch.manual_seed(config.seed)
        self.start = find_start(teacher, self.method, None)
        shape = config.shape(self.method, self.start.depth)
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
