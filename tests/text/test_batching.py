"""Batches of like length: nothing lost, nothing over the budget, the same from the same seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertender.text.batch import BatchLimits, BatchOrder, BatchPlan, length_buckets, plan_batches

LENGTHS = st.lists(st.integers(1, 80), min_size=1, max_size=200)
BUDGETS = st.integers(1, 300)
SIZES = st.integers(1, 9)
PROCESSES = st.integers(1, 5)
LIMITS = [field.name for field in fields(BatchLimits)]

SMALL_WASTE = 0.05
"""Share of padding that length buckets may cost on texts of realistic lengths."""


def epochs_of(plan: BatchPlan) -> list[tuple[tuple[int, ...], ...]]:
    return [plan.batches[start:end] for start, end in pairwise((0, *plan.epoch_ends))]


def plan_of(
    lengths: Sequence[int], batches_per_pool: int = 50, in_turn: bool = False, **settings: Any
) -> BatchPlan:
    limited = {name: settings.pop(name) for name in LIMITS if name in settings}
    order = BatchOrder(batches_per_pool, in_turn)
    return plan_batches(lengths, BatchLimits(**limited), order, **settings)


def tokens(batch: Sequence[int], lengths: Sequence[int]) -> int:
    """Return what a batch costs, padding included."""
    return max(lengths[index] for index in batch) * len(batch)


def realistic_lengths(count: int) -> list[int]:
    """Token counts like a sentence set's: log-normal, 13 in the median, at most 66."""
    drawn = np.random.default_rng(5).lognormal(np.log(13), 0.6, count)
    return np.clip(drawn, 3, 66).astype(int).tolist()


@given(lengths=LENGTHS, budget=BUDGETS, size=st.none() | SIZES, multiple=PROCESSES)
def test_buckets(lengths: list[int], budget: int, size: int | None, multiple: int) -> None:
    buckets = length_buckets(lengths, budget, size, multiple)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(lengths)))
    assert all(len(bucket) % multiple == 0 for bucket in buckets[:-1])
    for bucket in buckets:
        within_budget = tokens(bucket, lengths) <= budget
        within_size = size is None or len(bucket) <= size
        assert len(bucket) <= multiple or (within_budget and within_size)
    ordered = [lengths[index] for bucket in buckets for index in bucket]
    assert ordered == sorted(lengths)


def test_buckets_are_filled() -> None:
    assert [len(bucket) for bucket in length_buckets([4] * 10, 16)] == [4, 4, 2]
    assert [len(bucket) for bucket in length_buckets([4] * 10, 16, 3)] == [3, 3, 3, 1]
    assert [len(bucket) for bucket in length_buckets([4] * 10, 16, multiple=3)] == [3, 3, 3, 1]
    assert length_buckets([50, 2, 50], 10) == [[1], [0], [2]]
    assert length_buckets([], 10) == []


@given(
    lengths=LENGTHS,
    epochs=st.integers(1, 3),
    size=SIZES,
    budget=BUDGETS,
    processes=PROCESSES,
    seed=st.integers(0, 2**31),
    pool=st.integers(1, 60),
    in_turn=st.booleans(),
)
def test_every_example_once_an_epoch(
    lengths: list[int],
    epochs: int,
    size: int,
    budget: int,
    processes: int,
    seed: int,
    pool: int,
    in_turn: bool,
) -> None:
    plan = plan_of(
        lengths,
        epochs=epochs,
        batch_size=size * processes,
        tokens_per_batch=budget * processes,
        seed=seed,
        processes=processes,
        batches_per_pool=pool,
        in_turn=in_turn,
    )
    assert len(plan.epoch_ends) == epochs and plan.epoch_ends[-1] == len(plan)
    for epoch in epochs_of(plan):
        times = Counter(index for batch in epoch for index in batch)
        assert times.keys() == set(range(len(lengths)))
        assert times.total() - len(lengths) == -len(lengths) % processes, (
            "repeated for equal shares"
        )
    for batch in plan.batches:
        assert len(batch) <= size * processes
        assert len(batch) == processes or tokens(batch, lengths) <= budget * processes


def test_two_processes_see_the_batches_of_one() -> None:
    settings = {"epochs": 2, "batch_size": 8, "tokens_per_batch": 10**6, "seed": 4}
    lengths = realistic_lengths(1000)
    one = plan_of(lengths, **settings)
    assert plan_of(lengths, **settings, processes=2) == one


@given(
    examples=st.lists(st.tuples(st.integers(1, 80), st.integers(0, 3)), min_size=1, max_size=200),
    size=SIZES,
    budget=BUDGETS,
    processes=PROCESSES,
    in_turn=st.booleans(),
)
def test_a_batch_is_of_one_group(
    examples: list[tuple[int, int]], size: int, budget: int, processes: int, in_turn: bool
) -> None:
    lengths, groups = [length for length, _ in examples], [group for _, group in examples]
    settings: dict[str, Any] = {
        "epochs": 1,
        "batch_size": size,
        "tokens_per_batch": budget,
        "seed": 3,
        "in_turn": in_turn,
        "batches_per_pool": 4,
    }
    plan = plan_of(lengths, **settings, processes=processes, groups=groups)
    assert all(len({groups[index] for index in batch}) == 1 for batch in plan.batches)
    assert {index for batch in plan.batches for index in batch} == set(range(len(lengths)))
    assert plan_of(lengths, **settings, groups=[7] * len(lengths)) == plan_of(lengths, **settings)


@pytest.mark.parametrize("in_turn", [False, True])
def test_no_examples_make_no_batches(in_turn: bool) -> None:
    plan = plan_batches(
        [], BatchLimits(4, 100), BatchOrder(4, in_turn), epochs=2, seed=0, groups=[]
    )
    assert plan == BatchPlan((), (0, 0))


@pytest.mark.parametrize("pools", [{}, {"in_turn": True, "batches_per_pool": 7}])
def test_groups_take_turns_in_proportion_to_their_sizes(pools: dict[str, Any]) -> None:
    """Algorithm 1 of MT-DNN: packed a task each, merged, shuffled in every epoch anew."""
    sizes = (300, 100, 20)
    groups = [number for number, size in enumerate(sizes) for _ in range(size)]
    settings = {"epochs": 4, "batch_size": 10, "tokens_per_batch": 10**6, "seed": 0}
    plan = plan_of([8] * sum(sizes), **settings, groups=groups, **pools)
    orders = [[groups[batch[0]] for batch in epoch] for epoch in epochs_of(plan)]
    for order in orders:
        assert Counter(order) == {0: 30, 1: 10, 2: 2}
        assert 2 < sum(number == 1 for number in order[:21]) < 9, "spread over the epoch"
    assert len({tuple(order) for order in orders}) == len(orders)


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("seed", [0, 7])
def test_drawn_from_the_seed(seed: int, in_turn: bool) -> None:
    settings = {"epochs": 3, "batch_size": 4, "tokens_per_batch": 200, "in_turn": in_turn}
    lengths = realistic_lengths(500)
    plan = plan_of(lengths, **settings, seed=seed)
    assert plan == plan_of(lengths, **settings, seed=seed)
    assert plan != plan_of(lengths, **settings, seed=seed + 1)
    first, second, third = epochs_of(plan)
    assert len({first, second, third}) == 3, "another order in every epoch"
    assert set(first) != set(second), "and other batches, not only their order"
    longer = plan_of(lengths, **{**settings, "epochs": 4}, seed=seed)
    assert longer.batches[: len(plan)] == plan.batches, "an epoch does not know how many follow"


def waste(batches: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    """Return the share of padding."""
    return 1 - sum(lengths) / sum(tokens(batch, lengths) for batch in batches)


ORDINARY = {"epochs": 1, "batch_size": 32, "tokens_per_batch": 8192, "seed": 0}


@pytest.mark.parametrize("in_turn", [False, True])
def test_padding_is_nearly_saved(in_turn: bool) -> None:
    lengths = realistic_lengths(5000)
    plan = plan_of(lengths, **ORDINARY, in_turn=in_turn)
    shuffled = np.random.default_rng(0).permutation(len(lengths)).tolist()
    random_batches = [shuffled[start : start + 32] for start in range(0, len(shuffled), 32)]
    assert waste(plan.batches, lengths) < SMALL_WASTE
    assert waste(random_batches, lengths) > 0.5, (
        "what it saves: more than half of all work is padding"
    )
    assert len(plan) == len(random_batches), "no batch is left half full by a pool"


@pytest.mark.parametrize("pool", [2, 5, 20])
def test_a_pool_in_turn_sees_all_lengths(pool: int) -> None:
    """Each run of so many steps has about the lengths of the whole, whatever batches hold."""
    lengths = realistic_lengths(32 * pool * 30)
    plan = plan_of(lengths, **ORDINARY, batches_per_pool=pool, in_turn=True)
    runs = [plan.batches[start : start + pool] for start in range(0, len(plan), pool)]
    assert len(runs) == 30 and {len(run) for run in runs} == {pool}
    means = [np.mean([lengths[row] for batch in run for row in batch]) for run in runs]
    spread = np.std(lengths) / np.sqrt(32 * pool)
    assert max(abs(mean - np.mean(lengths)) for mean in means) < 4 * spread
    first = [max(lengths[row] for row in batch) for run in runs for batch in run[:1]]
    assert len(set(first)) > 1, "shuffled inside a pool"


def test_larger_pools_pad_less() -> None:
    lengths = realistic_lengths(32 * 200)
    wastes = [
        waste(plan_of(lengths, **ORDINARY, batches_per_pool=pool, in_turn=True).batches, lengths)
        for pool in (1, 2, 5, 10, 50)
    ]
    assert wastes == sorted(wastes, reverse=True) and wastes[-1] < wastes[0] / 10


def test_a_pool_counts_the_batches_that_the_budget_makes() -> None:
    """Of long texts fewer fit into a batch, and fewer into a pool."""
    settings = {**ORDINARY, "tokens_per_batch": 512, "batches_per_pool": 16, "in_turn": True}
    plan = plan_of([64] * 1024, **settings, groups=[row % 2 for row in range(1024)])
    groups = [batch[0] % 2 for batch in plan.batches]
    assert len(plan) == 1024 // 8
    pools = [sum(groups[start : start + 16]) for start in range(0, len(plan), 16)]
    assert pools == [8] * 8, "and has its share of each group"


def test_short_and_long_batches_are_mixed() -> None:
    lengths = realistic_lengths(3000)
    plan = plan_of(lengths, epochs=1, batch_size=32, tokens_per_batch=8192, seed=0)
    longest = [max(lengths[index] for index in batch) for batch in plan.batches]
    third = len(longest) // 3
    assert abs(np.mean(longest[:third]) - np.mean(longest[-third:])) < 5


@pytest.mark.parametrize("steps", [1, 3, 4, 7, 8, 20])
def test_a_plan_is_cut_after_so_many_steps(steps: int) -> None:
    """Whole epochs keep their ends, and the last one ends where the plan does."""
    plan = plan_of([8] * 16, epochs=2, batch_size=4, tokens_per_batch=64, seed=0)
    cut = plan.first(steps)
    assert cut.batches == plan.batches[:steps]
    assert cut.epoch_ends == {1: (1,), 3: (3,), 4: (4,), 7: (4, 7), 8: (4, 8), 20: (4, 8)}[steps]
