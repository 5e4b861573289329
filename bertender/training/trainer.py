"""The Trainer of transformers over batches that are laid out before, minimising an Objective."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainerCallback, TrainingArguments

from bertender.core.distributed import is_main_process
from bertender.core.errors import TrainingError
from bertender.core.progress import Bar
from bertender.core.timing import Stopwatch
from bertender.text.batching import BatchPlan
from bertender.training.checkpoint import SafeCheckpoints
from bertender.training.config import TrainingConfig, computes_in_bf16
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.learning_rates import Rates, pace, split_by_rate
from bertender.training.objective import LossParts, Objective, TrainingReport

__all__ = ["PlannedTrainer", "Progress", "trainer_arguments"]

logger = logging.getLogger(__name__)

LOG_EVERY = 50
SCHEDULERS = {"linear": "linear", "constant": "constant_with_warmup"}
"""Our names of schedules, and those of the Trainer."""


class PlannedTrainer(SafeCheckpoints):
    """The Trainer over a BatchPlan, minimising an Objective.

    Raises:
        TrainingError: by `train`, when the loss is not a number any more.
    """

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


class Progress(TrainerCallback):
    """Moves the bar, scores the model at the end of each epoch, and saves the end."""

    def __init__(
        self,
        bar: Bar,
        plan: BatchPlan,
        at_epoch_end: Callable[[Any], dict[str, float]] | None,
    ) -> None:
        self.bar = bar
        self.plan = plan
        self.at_epoch_end = at_epoch_end
        self.samples = 0
        self.scoring = Stopwatch()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.skip(state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.bar.advance()
        self.samples += len(self.plan.batches[state.global_step - 1])
        if state.global_step == len(self.plan):
            control.should_save = True
        if state.global_step in self.plan.epoch_ends and self.at_epoch_end and is_main_process():
            model = kwargs["model"]
            with self.scoring.running():
                scores = self.at_epoch_end(getattr(model, "module", model))
            epoch = self.plan.epoch_ends.index(state.global_step) + 1
            state.log_history.append({"epoch": epoch, "scores": scores})
            logger.info("epoch %d: %s", epoch, scores)
            self.bar.note("  ".join(f"{name} {value:.3f}" for name, value in scores.items()))


def trainer_arguments(config: TrainingConfig, work: Path) -> TrainingArguments:
    """Return the Trainer's arguments for a config; its checkpoints go to `work`."""
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
