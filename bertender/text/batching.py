"""Batches of examples of similar length, under a token budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np


@dataclass(frozen=True)
class Pooling:
    """A row of POOLINGS. Examples are sorted by length only within a random pool of them.

    Sorting all of them would make the same batches in every epoch; pools of one batch make random
    batches.
    """

    batches: int | None
    """Batches of a pool, about; None where the settings set how many."""
    in_turn: bool = False
    """Pools follow each other, and batches are shuffled inside a pool: so each run of that many
    steps sees all lengths. Else the batches of the whole epoch are shuffled."""


POOLINGS: Mapping[str, Pooling] = {
    "sorted": Pooling(50),
    "random": Pooling(1),
    "pooled": Pooling(None, in_turn=True),
}


@dataclass(frozen=True)
class BatchLimits:
    """Limits of a batch, all processes together."""

    batch_size: int
    """Most examples."""
    tokens_per_batch: int
    """Most tokens, padding included."""
    processes: int = 1
    """Every batch is a multiple of this, so that all processes have equal shares; in the last one
    of an epoch, fewer examples than `processes` may be repeated for that."""


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
        """Return the plan cut after some batches; the last epoch ends there, complete or not."""
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
    rows: Callable[[int], int] = int,
) -> list[list[int]]:
    """Cut the examples, sorted by length, into batches that fit the budget.

    Args:
        lengths: tokens of each example.
        tokens_per_batch: most tokens of a batch, padding included; an example that is longer
            than this makes a batch of its own.
        batch_size: most examples of a batch; None for no such limit.
        multiple: batches grow by so many examples at once, so that only the last one of all may
            not be divisible by it, and it leaves room; so many always fit.
        rows: examples -> the rows that a batch of them is padded to.

    Returns:
        Batches of indices into `lengths`, shortest examples first; each index exactly once.
    """
    order = np.argsort(np.asarray(lengths), kind="stable").tolist()
    batches: list[list[int]] = []
    for start in range(0, len(order), multiple):
        group = order[start : start + multiple]
        size = len(batches[-1]) + multiple if batches else 0
        # sorted by length, so the newest example is the longest of its batch
        fits = bool(batches) and lengths[group[-1]] * rows(size) <= tokens_per_batch
        if fits and (batch_size is None or size <= batch_size):
            batches[-1] += group
        else:
            batches.append(group)
    return batches


def plan_batches(
    lengths: Sequence[int],
    limits: BatchLimits,
    pooling: Pooling = POOLINGS["sorted"],
    *,
    epochs: int,
    seed: int,
    groups: Sequence[int] | None = None,
) -> BatchPlan:
    """Lay out a run: length-bucketed batches in random order, drawn anew for every epoch.

    Args:
        lengths: tokens of each example.
        limits: what a batch may hold.
        pooling: how they are sorted and mixed, its number of batches explicit. Where pools follow
            each other, each has examples of all groups, by their sizes.
        epochs: passes over the examples.
        seed: what the order is drawn from.
        groups: the number of each example's group; every batch is of one group. The batches of
            all groups are shuffled together, so that each has a share by its size (MT-DNN,
            arXiv 1901.11504, Algorithm 1). None makes one group of all.
    """
    by_group: dict[int, list[int]] = {number: [] for number in sorted(set(groups or [0]))}
    for index, number in enumerate(groups or [0] * len(lengths)):
        by_group[number].append(index)
    members = list(by_group.values())
    bounded = _Bounded(lengths, limits)
    epoch_of = _pools_in_turn if pooling.in_turn else _pools_shuffled
    assert pooling.batches is not None
    batches: list[tuple[int, ...]] = []
    epoch_ends = []
    for epoch in range(epochs):
        generator = np.random.default_rng((seed, epoch))
        batches += map(tuple, epoch_of(bounded, members, pooling.batches, generator))
        epoch_ends.append(len(batches))
    return BatchPlan(tuple(batches), tuple(epoch_ends))


@dataclass(frozen=True)
class _Bounded:
    """Examples, by their length, and what a batch of them may hold."""

    lengths: Sequence[int]
    limits: BatchLimits

    def batches(self, pool: Sequence[int]) -> list[list[int]]:
        """Return the batches of a pool of examples, by their length."""
        most, processes = self.limits, self.limits.processes
        lengths = [self.lengths[index] for index in pool]
        buckets = length_buckets(lengths, most.tokens_per_batch, most.batch_size, processes)
        batches = [[int(pool[place]) for place in bucket] for bucket in buckets]
        # the first examples of a batch are repeated until it divides by the number of processes
        return [
            [batch[index % len(batch)] for index in range(len(batch) + -len(batch) % processes)]
            for batch in batches
        ]


def _pools_shuffled(
    bounded: _Bounded,
    members: Sequence[Sequence[int]],
    batches_per_pool: int,
    generator: np.random.Generator,
) -> list[list[int]]:
    """Return an epoch whose batches are shuffled all together; a pool is of one group."""
    pool_size = bounded.limits.batch_size * batches_per_pool
    pool_size += -pool_size % bounded.limits.processes
    batches = []
    for group in members:
        order = np.asarray(group)[generator.permutation(len(group))].tolist()
        for start in range(0, len(order), pool_size):
            batches += bounded.batches(order[start : start + pool_size])
    return _shuffled(batches, generator)


def _pools_in_turn(
    bounded: _Bounded,
    members: Sequence[Sequence[int]],
    batches_per_pool: int,
    generator: np.random.Generator,
) -> list[list[int]]:
    """Return an epoch of one pool after the other; batches are shuffled inside each."""
    counts = [len(bounded.batches(group)) for group in members]
    pools: list[list[list[int]]] = [
        [] for _ in range(max(1, round(sum(counts) / batches_per_pool)))
    ]
    for group, count in zip(members, counts, strict=True):
        order = np.asarray(group)[generator.permutation(len(group))].tolist()
        parts = _parts(order, count, min(count, len(pools)), bounded.limits.processes)
        places = generator.permutation(len(pools))[: len(parts)].tolist()
        for place, part in zip(places, parts, strict=True):
            pools[place] += bounded.batches(part)
    return [batch for pool in pools for batch in _shuffled(pool, generator)]


def _parts(order: list[int], batches: int, count: int, multiple: int) -> list[list[int]]:
    """Cut examples into `count` parts of about equal numbers of whole batches.

    A part that ended in the middle of a batch would leave one that is not full.
    """
    size = -(-len(order) // batches)
    size += -size % multiple
    whole = -(-len(order) // size)
    ends = [whole * part // count * size for part in range(count + 1)]
    parts = [order[start:end] for start, end in pairwise(ends)]
    return [part for part in parts if part]


def _shuffled(batches: list[list[int]], generator: np.random.Generator) -> list[list[int]]:
    return [batches[index] for index in generator.permutation(len(batches))]
