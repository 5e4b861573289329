"""The one training path: pre-training, fine-tuning and distilling differ in model and objective.

    examples (TokenDataset) + model + Objective + TrainingConfig -> train() -> the trained model

The loop is the Trainer of transformers, so devices, mixed precision, `accelerate launch` and
resuming are its work. Ours are the batches (length-bucketed, laid out for the whole run) and
the objective (a function of model and batch that returns named parts of the loss).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from bertender.core.distributed import is_main_process
from bertender.core.errors import TrainingError
from bertender.core.progress import progress_bar
from bertender.core.timing import Stopwatch
from bertender.models.own_models import not_finite
from bertender.problems.problem import NO_LABEL
from bertender.text.batching import POOLINGS, BatchLimits, BatchPlan, plan_batches
from bertender.training.attention import attention_of
from bertender.training.checkpoint import last_checkpoint
from bertender.training.config import TrainingConfig
from bertender.training.dropout import switch_off_dropout
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.learning_rates import Rates
from bertender.training.objective import LossParts, Objective, TrainingReport
from bertender.training.steps import Step, report_step
from bertender.training.trainer import PlannedTrainer, Progress, trainer_arguments

__all__ = ["NO_RATES", "planned", "train"]

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=torch.nn.Module)

NO_RATES: Rates = {}


def train(
    model: Model,
    examples: TokenDataset,
    objective: Objective,
    config: TrainingConfig,
    work: Path,
    *,
    description: str = "training",
    at_epoch_end: Callable[[Model], dict[str, float]] | None = None,
    steps: int | None = None,
    rates: Rates = NO_RATES,
) -> TrainingReport:
    """Train `model` in place; resume from the last checkpoint that an interrupted run left.

    The end is a checkpoint too: a gate may refuse the model, and what does not shape it may change.
    Each step is reported to the listeners of the context, see `steps.listen_to_steps`.

    Args:
        model: any module that the objective can run.
        examples: tokenised training examples.
        objective: the loss.
        config: length, pace and precision.
        work: directory of the checkpoints, from `work.work_directory`.
        description: text of the progress bar.
        at_epoch_end: scores the model on held-out data; must draw no random numbers.
        steps: end after so many, with the schedule of the learning rate; None for all epochs.
        rates: parts of the model that learn at a rate of their own.

    Raises:
        TrainingError: the loss, or a weight in the end, is not a number any more.
    """
    arguments = trainer_arguments(config, work)
    plan = planned(examples, config, arguments.world_size)
    plan = plan if steps is None else plan.first(steps)
    arguments.max_steps = len(plan)
    arguments.warmup_steps = round(config.warmup_ratio * len(plan))
    checkpoint = last_checkpoint(work)
    with progress_bar(description, len(plan)) as bar:
        progress = Progress(bar, plan, at_epoch_end)
        reported = _reported(_as_set(objective, config), len(plan), description, work)
        trainer = PlannedTrainer(model, arguments, examples, reported, plan, rates)
        trainer.add_callback(progress)  # type: ignore[no-untyped-call]
        with (clock := Stopwatch()).running():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if name := not_finite(model):
        raise TrainingError(
            f"after {description}, weight {name} is not a finite number. Try a lower "
            f"learning_rate than {config.learning_rate}, or precision fp32."
        )
    for wrapped in ("forward", "_original_forward"):  # by accelerate, to compute in bf16
        vars(model).pop(wrapped, None)
    report = trainer.report(progress.samples, clock.seconds - progress.scoring.seconds)
    if is_main_process():
        unread = () if _has_labels(examples) else ("hard",)  # texts that a teacher alone labels
        _warn_of_idle_losses(report, description, unread)
    return report


def _has_labels(examples: TokenDataset) -> bool:
    """Return whether an example is labelled."""
    labels = examples.columns.get("labels", ())
    return any(np.any(np.not_equal(each, NO_LABEL)) for each in labels)


def _warn_of_idle_losses(
    report: TrainingReport, description: str, unread: Sequence[str] = ()
) -> None:
    """Log a warning of a loss that never moved, or a part that was 0 throughout.

    A divergence from a teacher is 0 where there is nothing to learn from it.
    """
    first, *later = report.losses or [{}]
    if later and all(losses == first for losses in later):
        logger.warning(
            "%s: the loss was %s from the first step to the last: nothing was learned. Try a "
            "higher learning_rate",
            description,
            first,
        )
        return
    for name, value in first.items():
        if name in unread:
            continue
        if later and not value and not any(losses.get(name, 1.0) for losses in later):
            logger.warning(
                "%s: the loss %r was 0 from the first step to the last: nothing was learned from "
                "it",
                description,
                name,
            )


def planned(
    examples: TokenDataset, config: TrainingConfig, processes: int | None = None
) -> BatchPlan:
    """Return the batches of a whole run, over the processes of a distributed one."""
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))
    pooling = POOLINGS[config.batches]
    limits = BatchLimits(
        config.batch_size * processes, config.tokens_per_batch * processes, processes
    )
    return plan_batches(
        examples.lengths,
        limits,
        replace(pooling, batches=pooling.batches or config.pool_batches),
        epochs=config.epochs,
        seed=config.seed,
        groups=examples.groups,
    )


def _as_set(objective: Objective, config: TrainingConfig) -> Objective:
    """Return the objective, computed with the config's dropout and the attention of short texts."""

    def minimised(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        if config.no_dropout:
            switch_off_dropout(model)  # in each step, which the Trainer begins in training mode
        with attention_of(batch):
            return objective(model, batch, step)

    return minimised


def _reported(objective: Objective, steps: int, description: str, work: Path) -> Objective:
    """Return the objective, of which listeners hear in each step."""

    def minimised(model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        parts = objective(model, batch, step)
        losses = {name: part.detach() for name, part in parts.items()}
        report_step(Step(step, steps, description, work, batch, losses))
        return parts

    return minimised
