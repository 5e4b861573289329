"""The shared training path: pre-training, fine-tuning and distilling differ in model and objective.

    examples (TokenDataset) + model + Objective + TrainingConfig -> train() -> TrainingReport

The loop is the Trainer of transformers, which handles devices, mixed precision, `accelerate launch`
and resuming. Our part is the batches (length-bucketed, planned for the whole run) and the objective
(a function of model and batch that returns named terms of the loss).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import TrainerCallback, TrainingArguments

from bertender.core.artifact import Stopwatch
from bertender.core.errors import TrainingError
from bertender.core.files import replacing
from bertender.core.findings import EarlierPhase, TrainingFindings
from bertender.core.hardware import keep_freed_memory
from bertender.core.machine import is_main_process
from bertender.core.progress import Bar, progress_bar
from bertender.metrics.metric import is_labelled
from bertender.models.own_models import not_finite
from bertender.text.batch import BATCH_ORDERS, BatchPlan, plan_batches
from bertender.training.checkpoint import history_of, last_checkpoint, load_weights, save_weights
from bertender.training.config import LAST_EPOCH, Keeping, TrainingConfig, computes_in_bf16
from bertender.training.examples import TokenDataset
from bertender.training.heads.head import SPREAD
from bertender.training.heads.numbers import exact_numbers
from bertender.training.optimizers import NO_RATES, Rates, warn_of_default_rate
from bertender.training.steps import Objective, PlannedTrainer, limits_of

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=nn.Module)
Value = TypeVar("Value")

SCHEDULERS = {"linear": "linear", "constant": "constant_with_warmup"}
"""Our names of schedules, and the Trainer's."""


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
    keeping: Keeping = LAST_EPOCH,
) -> TrainingReport:
    """Train `model` in place, resuming from the last checkpoint of an interrupted run.

    There is a checkpoint at the end too: a gate may refuse the model, and settings that do not
    affect training may then change.

    Args:
        model: module that the objective can run.
        examples: tokenised training examples.
        objective: the loss.
        config: length, pace and precision.
        work: directory of the checkpoints, from `work_directory`.
        description: text of the progress bar.
        at_epoch_end: scores the model on held-out data; must draw no random numbers.
        steps: end after this many, keeping the learning rate schedule; None for all epochs.
        rates: parts of the model with their own learning rate.
        keeping: which epoch to keep, by the scores of `at_epoch_end`.

    Raises:
        TrainingError: the loss, or a weight at the end, is not a number.
    """
    warn_of_default_rate(config)
    keep_freed_memory()
    arguments = _trainer_arguments(config, work)
    plan = planned(examples, config, arguments.world_size)
    plan = plan if steps is None else plan.first(steps)
    arguments.warmup_steps = round(config.warmup_ratio * len(plan))
    checkpoint = last_checkpoint(work)
    if checkpoint and has_ended(scores_in(history_of(checkpoint)), keeping):
        plan = plan.first(int(checkpoint.name.split("-")[1]))
    arguments.max_steps = len(plan)
    with progress_bar(description, len(plan)) as bar:
        progress = _Progress(bar, plan, at_epoch_end, keeping, work)
        trainer = PlannedTrainer(model, arguments, examples, objective, config, plan, rates)
        trainer.add_callback(progress)
        exact = exact_numbers(model) if SPREAD in examples.columns else nullcontext()
        with exact, (clock := Stopwatch()).running():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    history: list[dict[str, Any]] = trainer.state.log_history  # that of checkpoints too
    report = TrainingReport(
        steps=trainer.state.global_step,
        losses=[entry["parts"] for entry in history if "parts" in entry],
        epochs=scores_in(history),
        samples=progress.samples,
        seconds=clock.seconds - progress.scoring.seconds,
    )
    if keeping.best and at_epoch_end:
        _keep_best(model, report, progress)
    if name := not_finite(model):
        raise TrainingError(
            f"after {description}, weight {name} is not a finite number. Try a lower "
            f"learning_rate than {config.learning_rate}, or precision fp32."
        )
    for wrapped in ("forward", "_original_forward"):  # set by accelerate to compute in bf16
        vars(model).pop(wrapped, None)
    if is_main_process():
        labels = examples.columns.get("labels", ())
        # only a teacher labels the other texts
        unread = () if any(map(is_labelled, labels)) else ("hard",)
        warn_of_idle_losses(report, description, unread)
    return report


def _keep_best(model: nn.Module, report: TrainingReport, progress: _Progress) -> None:
    """Load the weights of the best epoch into the model, and name that epoch in the report."""
    count, best = from_main_process(
        (len(report.epochs), best_epoch(report.epochs) if report.epochs else 0)
    )
    report.kept_epoch = best or None
    if best == count:
        return
    if not progress.weights_of(best).is_file():
        logger.warning("the weights of epoch %d are lost, and those of the last are kept", best)
        report.kept_epoch = None
        return
    load_weights(model, progress.weights_of(best))
    logger.info("epoch %d of %d is kept, the best", best, count)


def planned(
    examples: TokenDataset, config: TrainingConfig, processes: int | None = None
) -> BatchPlan:
    """Return the batches of a whole run, for all processes of a distributed run."""
    processes = processes or int(os.environ.get("WORLD_SIZE", "1"))
    order = BATCH_ORDERS[config.batches]
    return plan_batches(
        examples.lengths,
        limits_of(config, processes, config.accumulation),
        replace(order, batches=order.batches or config.pool_batches),
        epochs=config.epochs,
        seed=config.seed,
        groups=examples.groups,
        counts=examples.counts,
    )


def from_main_process(value: Value) -> Value:
    """Return the value of the first process in a distributed run; else the given value."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return value
    values = [value]
    torch.distributed.broadcast_object_list(values, src=0)
    return values[0]


class _Progress(TrainerCallback):
    """Moves the bar, scores the model after each epoch, and saves the best epoch and the end."""

    def __init__(
        self,
        bar: Bar,
        plan: BatchPlan,
        at_epoch_end: Callable[[Any], dict[str, float]] | None,
        keeping: Keeping,
        work: Path,
    ) -> None:
        self.bar = bar
        self.plan = plan
        self.at_epoch_end = at_epoch_end
        self.keeping = keeping
        self.work = work
        self.samples = 0
        self.scoring = Stopwatch()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.skip(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.advance()
        self.samples += len(self.plan.batches[state.global_step - 1])
        if state.global_step == len(self.plan):
            control.should_save = True
        if state.global_step in self.plan.epoch_ends and self.at_epoch_end:
            epoch = self.plan.epoch_ends.index(state.global_step) + 1
            if is_main_process():
                self._score(kwargs["model"], epoch, state)
            if self.keeping.patience is not None:
                ended = from_main_process(has_ended(scores_in(state.log_history), self.keeping))
                if ended and state.global_step < len(self.plan):
                    logger.info("epoch %d is the last: the score has risen no more", epoch)
                    control.should_save = control.should_training_stop = True

    def _score(self, model: Any, epoch: int, state: Any) -> None:
        model = getattr(model, "module", model)
        assert self.at_epoch_end is not None
        with self.scoring.running():
            scores = self.at_epoch_end(model)
        state.log_history.append({"epoch": epoch, "scores": scores})
        logger.info("epoch %d: %s", epoch, scores)
        self.bar.note("  ".join(f"{name} {value:.3f}" for name, value in scores.items()))
        at_end = state.global_step == len(self.plan)  # the model has the weights of this epoch
        best = self.keeping.best and best_epoch(scores_in(state.log_history)) == epoch
        if best and not at_end:
            with replacing(self.weights_of(epoch)) as draft:
                save_weights(model, draft)
            # earlier ones may go: a run resumed from before them scores them again
            for earlier in range(1, epoch):
                self.weights_of(earlier).unlink(missing_ok=True)

    def weights_of(self, epoch: int) -> Path:
        """Return the weights file of an epoch that is the best so far."""
        return self.work / f"best-{epoch}.safetensors"


def _trainer_arguments(config: TrainingConfig, work: Path) -> TrainingArguments:
    """Return the Trainer's arguments for a config; its checkpoints are written to `work`."""
    use_bf16 = computes_in_bf16(config)
    # TrainingArguments only ever sets it, so an fp32 run would inherit bf16 from a previous run
    os.environ["ACCELERATE_MIXED_PRECISION"] = "bf16" if use_bf16 else "no"
    arguments = TrainingArguments(
        output_dir=str(work),
        learning_rate=config.learning_rate,
        weight_decay=config.weight_decay,
        lr_scheduler_type=SCHEDULERS[config.schedule],
        bf16=use_bf16,
        use_cpu=not torch.cuda.is_available(),
        seed=config.seed,
        save_strategy="steps",
        save_steps=config.checkpoint_steps,
        logging_strategy="no",
        logging_nan_inf_filter=False,  # else it waits for a GPU in each step
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    # one process, one device, as planned: use `accelerate launch` for more GPUs
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments


@dataclass
class TrainingReport:
    """Record of a run: the loss during training, and the scores after each epoch.

    Samples and seconds count from the start or the resuming of the run, without scoring; they are
    ignored when reports are compared.
    """

    steps: int
    losses: list[dict[str, float]] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    samples: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)
    kept_epoch: int | None = None
    """Number of the epoch whose weights are kept, from 1; None for the last in any case."""

    @property
    def kept(self) -> dict[str, float]:
        """The scores of the kept epoch."""
        return self.epochs[(self.kept_epoch or len(self.epochs)) - 1]


def training_findings(reports: Mapping[str, TrainingReport], **more: Any) -> TrainingFindings:
    """Return the findings of a run for its artifact's card.

    Args:
        reports: report of each phase by its name, in order.
        more: other fields of TrainingFindings.
    """
    *earlier, last = reports.values()
    phases = [
        EarlierPhase(name=name, steps=report.steps, losses=report.losses, epochs=report.epochs)
        for name, report in zip(reports, earlier, strict=False)
    ]
    return TrainingFindings(
        steps=last.steps,
        losses=last.losses,
        epochs=last.epochs,
        kept_epoch=last.kept_epoch,
        earlier_phases=phases,
        **more,
    )


def warn_of_idle_losses(report: TrainingReport, description: str, unread: Sequence[str]) -> None:
    """Log a warning for a loss that never changed, or a term that was always 0.

    A divergence from a teacher is 0 if there is nothing to learn from it.
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
    for name in first:
        if later and name not in unread and not any(each.get(name, 1.0) for each in report.losses):
            logger.warning(
                "%s: the loss %r was 0 from the first step to the last: nothing was learned from "
                "it",
                description,
                name,
            )


def scores_in(history: Sequence[Mapping[str, Any]]) -> list[dict[str, float]]:
    """Return the scores of each epoch in a log of the Trainer."""
    return [entry["scores"] for entry in history if "scores" in entry]


def best_epoch(epochs: Sequence[Mapping[str, float]]) -> int:
    """Return the epoch, from 1, with the best mean score; the first in a tie."""
    means = [math.fsum(scores.values()) / len(scores) for scores in epochs]
    return 1 + means.index(max(means))


def has_ended(epochs: Sequence[Mapping[str, float]], keeping: Keeping) -> bool:
    """Return whether too many of the last epochs had no better score."""
    if keeping.patience is None or not epochs:
        return False
    return len(epochs) - best_epoch(epochs) >= keeping.patience
