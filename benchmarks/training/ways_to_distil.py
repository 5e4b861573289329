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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import Field

from bertender.comparison.accuracy import evaluate
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.files import CACHE_VARIABLE
from bertender.core.machine_load import MachineLoad, watched_load
from bertender.metrics.resampling import Score
from bertender.models.predictor import SEQUENCE_COLUMNS, Classifier, TorchPredictor
from bertender.tasks.task import Split, Task
from bertender.text.batch import Tokenize
from bertender.text.tokenizer import longest_input
from bertender.training.config import POOL_BATCHES
from bertender.training.examples import TokenDataset
from bertender.training.loop import Objective
from distill.distillation.distill_config import DistillConfig
from distill.distillation.distillation import Trained
from distill.distillation.on_task import OnTask, on_task

__all__ = ["WAYS", "TrainingRun", "Way", "distil_by", "padded"]


@dataclass(frozen=True)
class Way:
    """A row of WAYS."""

    summary: str
    padded: bool
    """Every text as long as the longest that is allowed."""
    caches_outputs: bool
    """Teacher outputs are cached; else the teacher runs in each step."""
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
        caches_outputs=False,
        precision="fp32",
        batches="random",
    ),
    "random": Way(
        "cached teacher outputs, random batches padded to their longest, bf16 where the "
        "machine has it: `bertender distill --batches random`",
        padded=False,
        caches_outputs=True,
        precision="auto",
        batches="random",
    ),
    "buckets": Way(
        "the teacher in each step, batches of like length, fp32",
        padded=False,
        caches_outputs=False,
        precision="fp32",
    ),
    "kept": Way(
        "cached teacher outputs, batches of like length, bf16 where the machine has it: "
        "`bertender distill --batches sorted`",
        padded=False,
        caches_outputs=True,
        precision="auto",
    ),
    **{
        f"pooled-{size}": Way(
            "cached teacher outputs, batches of like length inside random pools of about "
            f"{size} batches, one pool after the other, bf16 where the machine has it: "
            f"`bertender distill --batches pooled --pool-batches {size}`",
            padded=False,
            caches_outputs=True,
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
    kept_s: float = Field(description="computing the teacher's outputs, once for all epochs")
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
        """Seconds of the student, teacher outputs and all epochs together."""
        return self.kept_s + sum(self.epoch_s)


def padded(examples: TokenDataset, length: int) -> TokenDataset:
    """Return the examples, all of one length."""

    def filled(name: str, row: list[int]) -> list[int]:
        value = examples.padding.value(name)
        assert value is not None, f"{name} has a value a token"
        return [*row, *[value] * (length - len(row))]

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
    """Train a student one way; nothing that another run has cached is used.

    Args:
        name: a row of WAYS.
        artifact: the teacher.
        task: training and held-out texts.
        further: more texts that the student does not learn from, for the accuracy alone.
        config: what the ways share.
        work: a folder for checkpoints, which go again.
        noisy: train on a busy machine as well.

    Raises:
        MachineBusyError: other work disturbs the times, and noisy ones are not allowed.
    """
    way = WAYS[name]
    settings = {
        "precision": way.precision,
        "batches": way.batches,
        "pool_batches": way.pool_batches,
        "teacher_cache_mb": config.teacher_cache_mb * way.caches_outputs,
    }
    with TemporaryDirectory(dir=work) as folder:
        os.environ[CACHE_VARIABLE] = str(Path(folder) / "cache")
        gc.collect()
        ready = on_task(artifact, task, config.model_copy(update=settings))
        epochs = _EpochClock()
        distillation = replace(ready.distillation, evaluate=epochs)
        with watched_load(noisy) as meter:
            examples = distillation.examples()
            cached_s = distillation.clock.seconds
            texts = (
                padded(examples, longest_input(distillation.tokenizer)) if way.padded else examples
            )
            epochs.begin()
            trained = replace(distillation, examples=lambda: texts).run(
                config.model_copy(update=settings), Path(folder), f"{name}, seed {config.seed}"
            )
    scored = partial(_scored, trained, ready)
    score, predictions = scored(task.dev)
    _, further_predictions = scored(further) if len(further) else (None, ())
    return TrainingRun(
        way=name,
        seed=config.seed,
        kept_s=cached_s,
        epoch_s=tuple(epochs.seconds),
        teacher_s=distillation.clock.seconds,
        score=score,
        predictions=predictions,
        further_predictions=further_predictions,
        load=meter.load,
    )


class _EpochClock:
    """Times each epoch in the place where it would be scored."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.began = 0.0

    def begin(self) -> None:
        self.began = time.perf_counter()

    def __call__(self, training_module: Any, objective: Objective) -> dict[str, float]:
        now = time.perf_counter()
        self.seconds.append(now - self.began)
        self.began = now
        return {}


def _scored(trained: Trained, ready: OnTask, texts: Split) -> tuple[Score, tuple[int, ...]]:
    """Return a student's score on texts, and the labels that it predicts."""
    student, encode = trained.student, Tokenize(ready.distillation.tokenizer)
    predictor, parameters = TorchPredictor(student), student.num_parameters()
    classifier = Classifier("student", ready.task.labels, encode, predictor, parameters)
    score, predictions = evaluate(classifier, texts, ready.task.metric)
    return score, tuple(predictions.tolist())
