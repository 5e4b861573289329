"""Training steps: the objective, the batch in parts that fit the memory, and its gradient.

A step's batch is `accumulation` times as large as `batch_size` and `tokens_per_batch` say, and is
cut into parts within these limits. The gradient is that of the whole batch, however it is cut: each
mean is over the batch, not over a part (`bertender.training.heads.divisor`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, cast

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset
from transformers import PrinterCallback, TrainingArguments

from bertender.core.errors import TrainingError
from bertender.text.batch import BatchLimits, BatchPlan, Bounded
from bertender.training.checkpoint import SafeCheckpoints
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads.head import LEAST_WEIGHT, SPREAD, Part, parts_of_a_batch
from bertender.training.optimizers import OPTIMIZERS, Rates, learn_numbers, pace, split_by_rate

LossParts = Mapping[str, torch.Tensor]
LOG_EVERY = 50


class Objective(Protocol):
    """The loss that a training run minimises."""

    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        """Return the named, weighted terms of the loss (scalars); their sum is minimised.

        Random numbers must be drawn from the seed and `step`, so that a resumed run repeats them.
        """
        ...


class RepeatedObjective(ABC):
    """An objective with several losses per batch, each of which depends on the previous
    gradient."""

    @abstractmethod
    def __call__(self, model: nn.Module, batch: TensorBatch, step: int) -> LossParts:
        """Return a loss with the same means; only their counts are used."""

    @abstractmethod
    def turns(self, model: nn.Module, batch: TensorBatch, step: int) -> Iterator[LossParts]:
        """Yield the losses, whose sum is minimised; after each, its gradient has been computed."""


def limits_of(config: TrainingConfig, processes: int, times: int = 1) -> BatchLimits:
    """Return the limits of a batch over all processes, or of one `times` as large."""
    several = processes * times
    return BatchLimits(config.batch_size * several, config.tokens_per_batch * several, processes)


class Steps(Dataset[list[TensorBatch]]):
    """The steps of a run: each step's batch, in parts.

    Args:
        plan: batches over all processes.
        examples: examples that the plan's numbers refer to.
        config: limits of a part.
        process: number of this process.
        processes: number of processes; each has the same number of parts.
    """

    def __init__(
        self,
        plan: BatchPlan,
        examples: TokenDataset,
        config: TrainingConfig,
        process: int = 0,
        processes: int = 1,
    ) -> None:
        self.plan = plan
        self.examples = examples
        self.in_parts = config.accumulation > 1
        limits = limits_of(config, processes)
        self.bounded = Bounded(examples.lengths, limits, examples.counts)
        self.share = slice(process, None, processes)

    def __len__(self) -> int:
        return len(self.plan)

    def __getitem__(self, step: int) -> list[TensorBatch]:
        batch = self.plan.batches[step]
        parts = self.bounded.batches(batch) if self.in_parts else [batch]
        return [self.examples.batch(part[self.share]) for part in parts]

    def loader(self) -> DataLoader[Any]:
        """Return a loader of the steps, in order."""
        return DataLoader(
            self, batch_sampler=[[step] for step in range(len(self))], collate_fn=_own
        )


def _own(steps: list[list[TensorBatch]]) -> list[TensorBatch]:
    (parts,) = steps
    return parts


class PlannedTrainer(SafeCheckpoints):
    """The Trainer of transformers over a BatchPlan, whose step is the gradient of an Objective over
    a batch in parts.

    Raises:
        TrainingError: raised by `train` when the loss is not a number.
    """

    def __init__(
        self,
        model: nn.Module,
        arguments: TrainingArguments,
        examples: TokenDataset,
        objective: Objective,
        config: TrainingConfig,
        plan: BatchPlan,
        rates: Rates,
    ) -> None:
        super().__init__(model=model, args=arguments, train_dataset=examples)
        self.remove_callback(PrinterCallback)  # it prints
        self.minimised = objective
        self.takes_one_mean: bool | None = None
        """Whether the loss is one mean; None until the first batch."""
        self.examples = examples
        self.config = config
        self.plan = plan
        self.rates = rates
        self.model_accepts_loss_kwargs = False

    def create_optimizer(self, model: Any = None) -> Any:
        is_new, own = self.optimizer is None, cast(nn.Module, self.model)
        optimizer = super().create_optimizer(*([] if model is None else [model]))
        if is_new and self.config.optimizer in OPTIMIZERS:
            names = "params", "weight_decay"
            groups = [{name: group[name] for name in names} for group in optimizer.param_groups]
            optimizer = OPTIMIZERS[self.config.optimizer](groups, self.args.learning_rate)
            self.optimizer = optimizer
        if is_new:
            if (spreads := self.examples.columns.get(SPREAD)) is not None:
                learn_numbers(optimizer, own, float(spreads[0]))
            split_by_rate(optimizer, own, self.rates)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        is_new = self.lr_scheduler is None
        optimizer = optimizer or self.optimizer
        scheduler: Any = super().create_scheduler(num_training_steps, optimizer)
        if is_new:
            pace(scheduler, optimizer, self.rates, num_training_steps)
        return scheduler

    def get_train_dataloader(self) -> DataLoader[dict[str, Any]]:
        processes = self.args.process_index, self.args.world_size
        return Steps(self.plan, self.examples, self.config, *processes).loader()

    def log_losses(self, step: int, parts: LossParts) -> None:
        """Write the loss into the history in some of the steps.

        Raises:
            TrainingError: the loss is not a number.
        """
        is_logged = step % LOG_EVERY == 0 or step + 1 == len(self.plan)
        # the loss is read only in these steps, since reading it waits for a GPU
        if is_logged or (step + 1) % self.args.save_steps == 0:
            values = {name: round(float(part), 6) for name, part in parts.items()}
            if not all(map(math.isfinite, values.values())):
                raise TrainingError(
                    f"the loss at step {step} of {len(self.plan)} is not a number: {values}. Try a "
                    f"lower learning_rate than {self.args.learning_rate}, or precision fp32."
                )
            if is_logged:
                entry: Any = {"step": step, "parts": values}
                self.state.log_history.append(entry)

    def floating_point_ops(self, inputs: Any) -> int:
        """Return 0: the Trainer's estimate is not used, and does not support batches in parts."""
        return 0

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Compute the gradient of a step's batch, a list of parts, and return its loss.

        The gradient is that of the whole batch: each mean is divided by the count over all parts.
        The count is known after the last part, so the gradient of a single mean is divided
        then. If a loss has several means, their counts are taken beforehand, in a run without
        gradients.
        """
        batches = [self._prepare_inputs(dict(batch)) for batch in inputs]
        in_turn = len(batches) > 1
        by_count = in_turn and self._takes_one_mean(model, batches[0])
        averages: Sequence[torch.Tensor] = ()
        if in_turn and not by_count:
            counts = [self._counts(model, *numbered) for numbered in enumerate(batches)]
            averages = [torch.stack(own).mean(0) for own in zip(*counts, strict=True)]
        model.train()
        if self.config.no_dropout:
            switch_off_dropout(model)
        total = torch.zeros((), device=self.args.device)
        values: dict[str, torch.Tensor] = {}
        for number, batch in enumerate(batches):
            part = Part(number, in_turn, averages)
            share, losses = self._gradient(model, batch, part, None if by_count else len(batches))
            total = total + share
            for name, loss in losses.items():
                values[name] = values.get(name, 0) + loss
        if by_count:
            total = total.clamp(min=LEAST_WEIGHT)
            for weight in model.parameters():
                if weight.grad is not None:
                    weight.grad /= total
            values = {name: value / total for name, value in values.items()}
        self.log_losses(self.state.global_step, values)
        return torch.stack([*values.values()]).sum()

    def _gradient(
        self, model: nn.Module, batch: TensorBatch, part: Part, parts: int | None
    ) -> tuple[torch.Tensor, LossParts]:
        """Add the gradient of a part of a batch to that of the other parts.

        Args:
            model: in training mode.
            batch: the part.
            part: its index, and the divisors of its means.
            parts: number of parts, which have equal weights; None if each is weighted by the count
                of the loss's single mean.

        Returns:
            The part's weight, and its losses weighted by it.
        """
        turns = self._turns(model, batch)
        values: dict[str, torch.Tensor] = {}
        share = torch.zeros((), device=self.args.device)
        while True:
            with (
                parts_of_a_batch(replace(part, counts=[])) as own,
                self.compute_loss_context_manager(),
                attention_of(batch),
            ):
                losses = next(turns, None)
            if losses is None:
                return share, values
            share = own.counts[0] if parts is None else share.new_tensor(1 / parts)
            weighed = {name: loss.float() * share for name, loss in losses.items()}
            self.accelerator.backward(torch.stack([*weighed.values()]).sum())
            for name, loss in weighed.items():
                values[name] = values.get(name, 0) + loss.detach()

    def _turns(self, model: nn.Module, batch: TensorBatch) -> Iterator[LossParts]:
        step = self.state.global_step
        if isinstance(self.minimised, RepeatedObjective):
            yield from self.minimised.turns(model, batch, step)
        else:
            yield self.minimised(model, batch, step)

    def _takes_one_mean(self, model: nn.Module, batch: TensorBatch) -> bool:
        """Return whether the loss is one mean, determined on the first batch."""
        if self.takes_one_mean is None:
            self.takes_one_mean = len(self._counts(model, 0, batch)) == 1
        return self.takes_one_mean

    @torch.no_grad()
    def _counts(self, model: nn.Module, number: int, batch: TensorBatch) -> list[torch.Tensor]:
        """Return the number of tokens or rows in each mean of a part's loss."""
        model.eval()  # so that state updated in training is updated once
        cuda = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        with (
            torch.random.fork_rng(cuda),
            parts_of_a_batch(Part(number, in_turn=True)) as part,
            self.compute_loss_context_manager(),
            attention_of(batch),
        ):
            self.minimised(model, batch, self.state.global_step)
        return part.counts


SHORT_TOKENS = 128
"""Up to about this length on a CPU, the gradient of torch's flash attention is slower than that of
plain products and a softmax."""


def switch_off_dropout(model: nn.Module) -> None:
    """Put every module that may drop values into evaluation mode.

    Attention drops values by a function according to its own mode, so this includes all modules
    except two kinds: those in which the mode affects something else, which set
    `differs_in_training`, and torch's recurrent layers, whose gradient a GPU computes only in
    training mode.
    """
    for part in model.modules():
        if not (isinstance(part, nn.RNNBase) or getattr(part, "differs_in_training", False)):
            part.training = False


def attention_of(batch: TensorBatch) -> AbstractContextManager[None]:
    """Return a context without flash attention if a batch's texts are short.

    Flash attention saves the memory of a matrix per head, tokens x tokens, which is small for short
    texts. On a CPU torch does not choose it anyway if attention has dropout, and models that
    compute attention themselves never do.
    """
    tokens = batch["input_ids"]
    if tokens.device.type == "cpu" and tokens.shape[-1] <= SHORT_TOKENS:
        return sdpa_kernel(SDPBackend.MATH)
    return nullcontext()
