"""Gradient accumulation: the batch of a step in parts that fit the memory.

A step's batch is planned `accumulation` times as large as `batch_size` and `tokens_per_batch` say,
and cut into parts that keep to them. The gradient is that of the whole batch, whatever the parts
hold: each mean is over the batch, not over a part (`bertender.training.heads.divisor`).
"""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, Dataset

from bertender.text.batch import BatchLimits, BatchPlan, Bounded
from bertender.training.config import TrainingConfig
from bertender.training.examples import TensorBatch, TokenDataset


def limits_of(config: TrainingConfig, processes: int, times: int = 1) -> BatchLimits:
    """Return the limits of a batch of all processes, or of one so many times as large."""
    several = processes * times
    return BatchLimits(config.batch_size * several, config.tokens_per_batch * several, processes)


class Steps(Dataset[list[TensorBatch]]):
    """The steps of a run: the batch of each, in parts.

    Args:
        plan: the batches, of all processes.
        examples: those that the plan's numbers are of.
        config: limits of a part.
        process: the number of this process.
        processes: how many there are; each has the same number of parts.
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
        """Return what yields the steps in order."""
        return DataLoader(
            self, batch_sampler=[[step] for step in range(len(self))], collate_fn=_own
        )


def _own(steps: list[list[TensorBatch]]) -> list[TensorBatch]:
    (parts,) = steps
    return parts
