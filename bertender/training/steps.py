"""Training steps: the objective, the batch in parts that fit the memory, and its gradient.

A step's batch is `accumulation` times as large as `batch_size` and `tokens_per_batch` say, and is
cut into parts within these limits. The gradient is that of the whole batch, however it is cut: each
mean is over the batch, not over a part (`bertender.training.heads.divisor`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.data import DataLoader, Dataset

from bertender.text.batch import BatchLimits, BatchPlan, Bounded
from bertender.training.checkpoint import SafeCheckpoints
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset
from bertender.training.heads.head import LEAST_WEIGHT, Part, parts_of_a_batch

LossParts = Mapping[str, torch.Tensor]


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
        return [
            self.examples.collate([self.examples[index] for index in part[self.share]])
            for part in parts
        ]

    def loader(self) -> DataLoader[Any]:
        """Return a loader of the steps, in order."""
        return DataLoader(
            self, batch_sampler=[[step] for step in range(len(self))], collate_fn=_own
        )


def _own(steps: list[list[TensorBatch]]) -> list[TensorBatch]:
    (parts,) = steps
    return parts


class AccumulatingTrainer(SafeCheckpoints):
    """A Trainer whose step is the gradient of an Objective over a batch in parts.

    Args:
        objective: objective to minimise.
        no_dropout: train in evaluation mode; see `switch_off_dropout`.
        settings: settings of the Trainer.
    """

    def __init__(self, objective: Objective, no_dropout: bool, **settings: Any) -> None:
        super().__init__(**settings)
        self.minimised = objective
        self.takes_one_mean: bool | None = None
        """Whether the loss is one mean; None until the first batch."""
        self.no_dropout = no_dropout

    def log_losses(self, step: int, parts: LossParts) -> None:
        """Write the loss of a step into the history."""
        raise NotImplementedError

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
        if self.no_dropout:
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
