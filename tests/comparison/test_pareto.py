"""The Pareto front: what is beaten in everything is not on it, and all else is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bertender.comparison.table import pareto_front

COSTS = st.dictionaries(
    st.integers(), st.tuples(*(st.integers(0, 4),) * 3), min_size=1, max_size=12
)


def test_what_is_worse_in_one_thing_and_better_in_none_is_not_on_it() -> None:
    costs = {"small": (1.0, 9.0), "fast": (9.0, 1.0), "neither": (9.0, 9.0), "slower": (1.0, 9.5)}
    assert pareto_front(costs) == ["small", "fast"]


def test_equal_ones_are_both_on_it() -> None:
    assert pareto_front({"one": (1, 2), "other": (1, 2)}) == ["one", "other"]


@given(COSTS)
def test_each_other_one_is_no_better_anywhere_than_one_on_it(
    costs: dict[int, tuple[int, int, int]],
) -> None:
    front = pareto_front(costs)
    assert front
    for key, own in costs.items():
        no_worse = [
            each
            for each in front
            if costs[each] != own and all(a <= b for a, b in zip(costs[each], own, strict=True))
        ]
        assert bool(no_worse) == (key not in front)
