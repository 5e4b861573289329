"""Running a method's phases one after another; an interrupted run goes on in the phase it was in.

Each phase has its own optimizer, schedule and folder of checkpoints. The end of a phase is kept
as a checkpoint too, from which a run that is resumed in a later phase takes the student.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import Field
from transformers import PreTrainedModel

from bertender.core.errors import ModelError
from bertender.core.timing import Stopwatch
from bertender.core.work import in_order
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.loop import NO_RATES, LossParts, Objective, TrainingReport, planned, train
from distill.losses import NO_LABEL
from distill.losses.signals import Signals, Wanted, read_signals
from distill.methods import Method, Phase
from distill.teachers.outputs import kept_in

__all__ = [
    "DistillationObjective",
    "PhasedConfig",
    "phase_settings",
    "refuse_misfits",
    "task_objective",
    "train_phases",
]


class PhasedConfig(TrainingConfig):
    """Settings of training in phases: the fields of TrainingConfig are those of the last."""

    earlier_epochs: int | None = Field(
        None, ge=1, description="epochs of each phase before the last, in methods that have some"
    )
    earlier_learning_rate: float | None = Field(
        None, gt=0, description="learning rate of the phases before the last"
    )


def task_objective(
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    bf16: bool,
    clock: Stopwatch,
    phase: Phase,
) -> DistillationObjective:
    """Return the objective of a phase on a task's texts, beside which answers may be kept."""
    depths = student.config.num_hidden_layers, teacher.config.num_hidden_layers
    return DistillationObjective(teacher, phase.reads(*depths), bf16, clock=clock)


class DistillationObjective:
    """The loss of a trainee. The teacher runs only for what the batches do not hold.

    Args:
        teacher: it is frozen, in eval mode, and moved to where the batches are.
        reads: what the trainee's loss reads of the teacher, and of which layers.
        bf16: run the teacher in bf16, as the student is.
        prepare: (batch, step) -> the batch that both models read.
        clock: it runs while the teacher does.
    """

    def __init__(
        self,
        teacher: PreTrainedModel,
        reads: Wanted,
        bf16: bool = False,
        *,
        prepare: Callable[[TensorBatch, int], TensorBatch] = lambda batch, step: batch,
        clock: Stopwatch | None = None,
    ) -> None:
        self.reads = reads
        self.bf16 = bf16
        self.prepare = prepare
        self.clock = clock or Stopwatch()
        self.teacher = teacher.eval().requires_grad_(False)

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        batch = self.prepare(batch, step)
        parts: LossParts = model(batch, self._teacher_signals(batch), step)
        return parts

    def _teacher_signals(self, batch: TensorBatch) -> Signals:
        kept = kept_in(batch, self.reads)
        online = {signal: self.reads[signal] for signal in self.reads if signal not in kept}
        if not online:
            nothing = Signals(torch.empty(0), self.teacher.config.num_hidden_layers)
            return replace(nothing, **kept)
        with self.clock.running():
            return replace(self._online_signals(batch, online), **kept)

    def _online_signals(self, batch: TensorBatch, wanted: Wanted) -> Signals:
        device = batch["input_ids"].device
        self.teacher.to(device)
        # the Trainer's own autocast does not reach the teacher on a GPU
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            return read_signals(self.teacher, batch, wanted)


def phase_settings(phase: Phase, config: PhasedConfig) -> PhasedConfig:
    """Return the config of one phase.

    The last takes the config as it is; those before it take its `earlier_` fields, else what the
    phase itself sets, else the config's.
    """
    if phase.epochs is None:
        return config
    wanted = {
        "epochs": config.earlier_epochs,
        "learning_rate": config.earlier_learning_rate,
    }
    given = {name: value for name, value in wanted.items() if value is not None}
    return config.model_copy(update={"epochs": phase.epochs, **phase.settings, **given})


def train_phases(
    method: Method,
    student: PreTrainedModel,
    teacher: PreTrainedModel,
    examples: TokenDataset,
    objective: Callable[[Phase], Objective],
    config: PhasedConfig,
    work: Path,
    *,
    description: str,
    score: Callable[[Any], dict[str, float]],
) -> tuple[PreTrainedModel, dict[str, TrainingReport]]:
    """Train the student by all phases of a method; return it with a report each phase.

    Args:
        method: its phases and trainees.
        student: it is trained in place.
        teacher: what it learns from.
        examples: the training texts, with those answers of the teacher that are kept.
        objective: what a phase minimises.
        config: how long and fast.
        work: directory of the checkpoints.
        description: what the progress bar says.
        score: measures the trainee after each epoch of the last phase.
    """
    reports: dict[str, TrainingReport] = {}
    phases = method.phases(student.config.num_hidden_layers)
    for phase, folder, is_last in in_order(phases, work):
        settings = phase_settings(phase, config)
        texts = examples if phase.needs or phase.masked else _labelled(examples)
        trainee: Any = method.trainee(
            student, teacher, phase, seed=config.seed, steps=len(planned(texts, settings))
        )
        reports[phase.name] = train(
            trainee,
            texts,
            objective(phase),
            settings,
            folder,
            description=description if is_last else f"{description}: {phase.name}",
            at_epoch_end=score if is_last else None,
            keep_end=not is_last,
            rates=getattr(trainee, "rates", NO_RATES),
        )
        student = trainee.finished()
    return student, reports


def refuse_misfits(method: Method, student: PreTrainedModel, teacher: PreTrainedModel) -> None:
    """Raise ModelError where a term cannot compare this student with this teacher."""
    misfits = [
        term.misfit(student.config, teacher.config)
        for phase in method.phases(student.config.num_hidden_layers)
        for term in phase.terms
        if term.weight
    ]
    if found := sorted({misfit for misfit in misfits if misfit}):
        raise ModelError(f"method {method.name!r}: {'; '.join(found)}.")


def _labelled(examples: TokenDataset) -> TokenDataset:
    """Return what a phase can learn from that reads labels alone."""
    kept = [bool(np.any(np.not_equal(labels, NO_LABEL))) for labels in examples.columns["labels"]]
    return examples if all(kept) else examples.where(kept)
