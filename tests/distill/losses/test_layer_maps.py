"""Layer maps: the papers' own examples, and what holds for every depth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distill.losses.terms import LAYER_MAPS

EXAMPLES = {
    ("last", 3, 12): ((3, 12),),
    ("last-between", 6, 12): ((1, 7), (2, 8), (3, 9), (4, 10), (5, 11)),
    ("skip", 6, 12): ((1, 2), (2, 4), (3, 6), (4, 8), (5, 10)),
    ("skip", 3, 6): ((1, 2), (2, 4)),
    ("uniform", 4, 12): ((1, 3), (2, 6), (3, 9), (4, 12)),
    ("with-embeddings", 2, 12): ((0, 0), (1, 6), (2, 12)),
}


@pytest.mark.parametrize(("name", "student", "teacher"), EXAMPLES)
def test_examples_of_the_papers(name: str, student: int, teacher: int) -> None:
    assert LAYER_MAPS[name](student, teacher) == EXAMPLES[name, student, teacher]


DEPTHS = st.integers(2, 48).flatmap(lambda n: st.tuples(st.integers(2, n), st.just(n)))


@pytest.mark.parametrize("name", LAYER_MAPS)
@given(depths=DEPTHS)
def test_layers_exist_and_ascend(name: str, depths: tuple[int, int]) -> None:
    pairs = LAYER_MAPS[name](*depths)
    assert pairs
    for places, depth in zip(zip(*pairs, strict=True), depths, strict=True):
        assert all(0 <= layer <= depth for layer in places)
        assert list(places) == sorted(set(places))
