"""The one training path: pre-training, fine-tuning and distilling differ in model and objective.

    examples (TokenDataset) + model + Objective + TrainingConfig -> train() -> the trained model

The loop is the Trainer of transformers, so devices, mixed precision, `accelerate launch` and
resuming are its work. Ours are the batches (length-bucketed, laid out for the whole run) and
the objective (a function of model and batch that returns named parts of the loss).
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from bertender.core.distributed import is_main_process
from bertender.core.errors import TrainingError
from bertender.core.progress import Bar, progress_bar
from bertender.core.timing import Stopwatch
from bertender.text.batching import POOLINGS, BatchLimits, BatchPlan, plan_batches
from bertender.training.attention import attention_of
from bertender.training.checkpoint import SafeCheckpoints, last_checkpoint
from bertender.training.config import TrainingConfig, computes_in_bf16
from bertender.training.dropout import switch_off_dropout
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.learning_rates import Rates, pace, split_by_rate
from bertender.training.steps import Step, report_step

__all__ = [
    "NO_RATES",
    "LossParts",
    "Objective",
    "TrainingReport",
    "planned",
    "train",
]

logger = logging.getLogger(__name__)

LossParts = Mapping[str, torch.Tensor]
Model = TypeVar("Model", bound=torch.nn.Module)

LOG_EVERY = 50
NO_RATES: Rates = {}
SCHEDULERS = {"linear": "linear", "constant": "constant_with_warmup"}
"""Our names of schedules, and those of the Trainer."""


class Objective(Protocol):
    """The loss that a training run minimises."""

    def __call__(self, model: torch.nn.Module, batch: TensorBatch, step: int) -> LossParts:
        """Return the named, weighted parts of the loss (scalars); their sum is minimised.

        Anything random must be drawn from the seed and `step`, so that a resumed run repeats it.
        """
        ...


@dataclass
class TrainingReport:
    """Record of a run: the loss as it fell, and the scores at the end of each epoch.

    Samples and seconds are those since the run began or was resumed, scoring left out; two runs
    that differ in them alone are equal.
    """

    steps: int
    losses: list[dict[str, float]] = field(default_factory=list)
    epochs: list[dict[str, float]] = field(default_factory=list)
    samples: int = field(default=0, compare=False)
    seconds: float = field(default=0.0, compare=False)


def train(
    model: Model,
    examples: TokenDataset,
    objective: Objective,
    config: TrainingConfig,
    work: Path,
    *,
    description: str = "training",
    at_epoch_end: Callable[[Model], dict[str, float]] | None = None,
    keep_end: bool = False,
    steps: int | None = None,
    rates: Rates = NO_RATES,
) -> TrainingReport:
    """Train `model` in place; resume from the last checkpoint that an interrupted run left.

    Each step is reported to the listeners of the context, see `steps.listen_to_steps`.

    Args:
        model: any module that the objective can run.
        examples: tokenised training examples.
        objective: the loss.
        config: length, pace and precision.
        work: directory of the checkpoints, from `work.work_directory`.
        description: text of the progress bar.
        at_epoch_end: scores the model on held-out data; must draw no random numbers.
        keep_end: leave a checkpoint of the end in `work`, so that a run of several parts can go
            on after this one.
        steps: end after so many, with the schedule of the learning rate; None for all epochs.
        rates: parts of the model that learn at a rate of their own.

    Raises:
        TrainingError: the loss is not a number any more.
    """
    arguments = _trainer_arguments(config, work)
    plan = planned(examples, config, arguments.world_size)
    plan = plan if steps is None else plan.first(steps)
    arguments.max_steps = len(plan)
    arguments.warmup_steps = round(config.warmup_ratio * len(plan))
    checkpoint = last_checkpoint(work)
    with progress_bar(description, len(plan)) as bar:
        progress = _Progress(bar, plan, at_epoch_end, keep_end)
        reported = _reported(_as_set(objective, config), len(plan), description, work)
        trainer = _PlannedTrainer(model, arguments, examples, reported, plan, rates)
        trainer.add_callback(progress)  # type: ignore[no-untyped-call]
        with (clock := Stopwatch()).running():
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    for wrapped in ("forward", "_original_forward"):  # by accelerate, to compute in bf16
        vars(model).pop(wrapped, None)
    return trainer.report(progress.samples, clock.seconds - progress.scoring.seconds)


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


class _PlannedTrainer(SafeCheckpoints):
    """The Trainer over a BatchPlan, minimising an Objective."""

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        examples: TokenDataset,
        objective: Objective,
        plan: BatchPlan,
        rates: Rates,
    ) -> None:
        super().__init__(model=model, args=arguments, train_dataset=examples)
        self.remove_callback(PrinterCallback)  # type: ignore[no-untyped-call]  # it prints
        self.examples = examples
        self.minimised: Objective = objective
        self.plan = plan
        self.rates = rates
        self.model_accepts_loss_kwargs = False

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        model: Any = self.model
        optimizer: Any = self.create_optimizer()  # type: ignore[no-untyped-call]
        split_by_rate(optimizer, model, self.rates)
        scheduler: Any = self.create_scheduler(num_training_steps, optimizer)
        pace(scheduler, optimizer, self.rates, num_training_steps)

    def get_train_dataloader(self) -> DataLoader[dict[str, Any]]:
        share = self.plan.share(self.args.process_index, self.args.world_size)
        return DataLoader(self.examples, batch_sampler=share, collate_fn=self.examples.collate)

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: TensorBatch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> torch.Tensor:
        step = self.state.global_step
        parts = self.minimised(model, inputs, step)
        if self._is_looked_at(step):
            self._record(step, parts)
        return torch.stack([part.float() for part in parts.values()]).sum()

    def _is_looked_at(self, step: int) -> bool:
        """Return whether to read the loss, for which a GPU must be waited for."""
        before_a_checkpoint = (step + 1) % self.args.save_steps == 0
        return step % LOG_EVERY == 0 or step + 1 == len(self.plan) or before_a_checkpoint

    def _record(self, step: int, parts: LossParts) -> None:
        values = {name: round(float(part.detach()), 6) for name, part in parts.items()}
        if not all(map(math.isfinite, values.values())):
            raise TrainingError(
                f"the loss at step {step} of {len(self.plan)} is not a number: {values}. Try a "
                f"lower learning_rate than {self.args.learning_rate}, or precision fp32."
            )
        if step % LOG_EVERY == 0 or step + 1 == len(self.plan):
            self._history().append({"step": step, "parts": values})

    def _history(self) -> list[dict[str, Any]]:
        """Return the Trainer's log, which its checkpoints keep."""
        history: list[dict[str, Any]] = self.state.log_history
        return history

    def report(self, samples: int, seconds: float) -> TrainingReport:
        """Return what the run did, the part before an interruption included."""
        return TrainingReport(
            steps=self.state.global_step,
            losses=[entry["parts"] for entry in self._history() if "parts" in entry],
            epochs=[entry["scores"] for entry in self._history() if "scores" in entry],
            samples=samples,
            seconds=seconds,
        )


class _Progress(TrainerCallback):
    """Moves the bar, scores the model at the end of each epoch, and keeps the end."""

    def __init__(
        self,
        bar: Bar,
        plan: BatchPlan,
        at_epoch_end: Callable[[Any], dict[str, float]] | None,
        keep_end: bool,
    ) -> None:
        self.bar = bar
        self.plan = plan
        self.at_epoch_end = at_epoch_end
        self.keep_end = keep_end
        self.samples = 0
        self.scoring = Stopwatch()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.skip(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.advance()
        self.samples += len(self.plan.batches[state.global_step - 1])
        if self.keep_end and state.global_step == len(self.plan):
            control.should_save = True
        if state.global_step in self.plan.epoch_ends and self.at_epoch_end and is_main_process():
            model = kwargs["model"]
            with self.scoring.running():
                scores = self.at_epoch_end(getattr(model, "module", model))
            epoch = self.plan.epoch_ends.index(state.global_step) + 1
            state.log_history.append({"epoch": epoch, "scores": scores})
            logger.info("epoch %d: %s", epoch, scores)
            self.bar.note("  ".join(f"{name} {value:.3f}" for name, value in scores.items()))


def _trainer_arguments(config: TrainingConfig, work: Path) -> TrainingArguments:
    use_bf16 = computes_in_bf16(config)
    # TrainingArguments only ever sets it, so a run in fp32 would inherit bf16 from one before
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
        save_total_limit=2,  # the newest counts only once its marker is written
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        ddp_find_unused_parameters=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    # one process, one device, as the plan lays it out: more GPUs are for `accelerate launch`
    arguments._n_gpu = min(arguments.n_gpu, 1)
    return arguments
