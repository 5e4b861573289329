"""Which examples go into a batch together: neighbours in length, under a token budget.

A batch costs its longest example times its size, so examples of like length belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["BATCHES_PER_POOL", "BatchPlan", "length_buckets", "plan_batches"]

BATCHES_PER_POOL = {"sorted": 50, "random": 1}
"""Examples are sorted by length only within a pool of so many batches: sorting all of them would
make the same batches in every epoch, and a pool of one batch makes random ones."""


@dataclass(frozen=True)
class BatchPlan:
    """Every batch of a training run in order, epoch after epoch; each is indices of examples.

    The whole run is laid out before it starts, so a resumed run continues at a position in this
    list, and each of several processes takes its own share of every batch.
    """

    batches: tuple[tuple[int, ...], ...]
    epoch_ends: tuple[int, ...]
    """Number of batches done at the end of each epoch."""

    def __len__(self) -> int:
        return len(self.batches)

    def first(self, steps: int) -> BatchPlan:
        """Return the plan cut after so many batches, where the last epoch ends, done or not."""
        batches = self.batches[:steps]
        whole = tuple(end for end in self.epoch_ends if end < len(batches))
        return BatchPlan(batches, (*whole, len(batches)))

    def share(self, process: int, processes: int) -> list[list[int]]:
        """Return the part of each batch that one of `processes` equal processes works on."""
        return [list(batch[process::processes]) for batch in self.batches]


def length_buckets(
    lengths: Sequence[int],
    tokens_per_batch: int,
    batch_size: int | None = None,
    multiple: int = 1,
) -> list[list[int]]:
    """Cut the examples, sorted by length, into batches that fit the budget.

    Args:
        lengths: tokens of each example.
        tokens_per_batch: most tokens of a batch, padding included; an example that is longer
            than this makes a batch of its own.
        batch_size: most examples of a batch; None for no such limit.
        multiple: batches grow by so many examples at once, so that only the last one of all may
            not be divisible by it, and it leaves room; so many always fit.

    Returns:
        Batches of indices into `lengths`, shortest examples first; each index exactly once.
    """
    order = np.argsort(np.asarray(lengths), kind="stable").tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), multiple):
        group = order[start : start + multiple]
        size = len(batches[-1]) + multiple if batches else 0
        # sorted by length, so the newest example is the longest of its batch
        fits = bool(batches) and lengths[group[-1]] * size <= tokens_per_batch
        if fits and (batch_size is None or size <= batch_size):
            batches[-1] += group
        else:
            batches.append(group)
    return batches


def plan_batches(
    lengths: Sequence[int],
    *,
    epochs: int,
    batch_size: int,
    tokens_per_batch: int,
    seed: int,
    processes: int = 1,
    groups: Sequence[int] | None = None,
    batches_per_pool: int = BATCHES_PER_POOL["sorted"],
) -> BatchPlan:
    """Lay out a run: length-bucketed batches in random order, drawn anew for every epoch.

    Args:
        lengths: tokens of each example.
        epochs: passes over the examples.
        batch_size: most examples of a batch, all processes together.
        tokens_per_batch: most tokens of a batch, padding included, all processes together.
        seed: what the order is drawn from.
        processes: every batch is a multiple of this, so that all processes have equal shares; in
            the last one of an epoch, fewer examples than `processes` may be repeated for that.
        groups: the number of each example's group; every batch is of one group. The batches of
            all groups are shuffled together, so that each has a share by its size (MT-DNN,
            arXiv 1901.11504, Algorithm 1). None makes one group of all.
        batches_per_pool: a row of BATCHES_PER_POOL.
    """
    members = _by_group(groups or [0] * len(lengths))
    batches: list[tuple[int, ...]] = []
    epoch_ends = []
    for epoch in range(epochs):
        generator = np.random.default_rng((seed, epoch))
        epoch_batches = [
            batch
            for group in members
            for batch in _one_epoch(
                lengths,
                group,
                batch_size,
                tokens_per_batch,
                processes,
                batches_per_pool,
                generator,
            )
        ]
        batches += [
            tuple(epoch_batches[index]) for index in generator.permutation(len(epoch_batches))
        ]
        epoch_ends.append(len(batches))
    return BatchPlan(tuple(batches), tuple(epoch_ends))


def _by_group(groups: Sequence[int]) -> list[list[int]]:
    """Return the examples of each group, in the order of the groups' numbers."""
    members: dict[int, list[int]] = {number: [] for number in sorted(set(groups))}
    for index, number in enumerate(groups):
        members[number].append(index)
    return list(members.values())


def _one_epoch(
    lengths: Sequence[int],
    group: Sequence[int],
    batch_size: int,
    tokens_per_batch: int,
    processes: int,
    batches_per_pool: int,
    generator: np.random.Generator,
) -> list[list[int]]:
    order = np.asarray(group)[generator.permutation(len(group))]
    pool_size = batch_size * batches_per_pool
    pool_size += -pool_size % processes
    batches = []
    for start in range(0, len(order), pool_size):
        pool = order[start : start + pool_size]
        pool_lengths = [lengths[index] for index in pool]
        for bucket in length_buckets(pool_lengths, tokens_per_batch, batch_size, processes):
            batches.append([int(pool[index]) for index in bucket])
    return [_filled(batch, processes) for batch in batches]


def _filled(batch: list[int], processes: int) -> list[int]:
    """Repeat a batch's first examples until it divides by the number of processes."""
    missing = -len(batch) % processes
    return batch + [batch[index % len(batch)] for index in range(missing)]
