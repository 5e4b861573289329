"""How long batches may be: by the time that earlier ones took."""

from __future__ import annotations

import math

import pytest

from serve.backend.batches import RunTime


def test_before_any_batch_there_is_no_bound() -> None:
    assert RunTime().characters_within(0.001) == math.inf


def test_the_first_batch_sets_the_time_of_a_character() -> None:
    time = RunTime()
    time.measured(characters=200, seconds=0.1)
    assert time.characters_within(0.05) == pytest.approx(100)


def test_later_ones_move_it() -> None:
    time = RunTime()
    time.measured(characters=100, seconds=0.1)
    for _ in range(50):
        time.measured(characters=100, seconds=0.4)
    assert time.characters_within(0.4) == pytest.approx(100, rel=0.01)


def test_a_batch_without_characters_says_nothing() -> None:
    time = RunTime()
    time.measured(characters=0, seconds=1.0)
    assert time.characters_within(1) == math.inf
