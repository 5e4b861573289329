"""SERVED_RUNTIMES: every way to run buckets, and how many of them at a time."""

from __future__ import annotations

import threading

import pytest

from bertender.models.runtimes import RUNTIMES
from serve.served_runtimes import BUCKETS_AT_ONCE, SERVED_RUNTIMES
from tests.serve.layouts import ENCODER_RUNTIME


def test_every_runtime_serves() -> None:
    in_process = {name for name, row in SERVED_RUNTIMES.items() if row.in_process == name}
    assert in_process == RUNTIMES.keys()
    others = SERVED_RUNTIMES.keys() - in_process
    assert others == {ENCODER_RUNTIME}
    assert all(SERVED_RUNTIMES[name].triton_backend for name in others)


@pytest.mark.parametrize("name", SERVED_RUNTIMES)
def test_results_are_in_the_order_of_the_buckets(name: str) -> None:
    assert list(SERVED_RUNTIMES[name].mapping()(abs, [-3, 1, -2])) == [3, 1, 2]


def test_another_model_has_the_next_bucket_while_it_runs_one() -> None:
    together = threading.Barrier(BUCKETS_AT_ONCE, timeout=10)
    mapping = SERVED_RUNTIMES[ENCODER_RUNTIME].mapping()
    assert sorted(mapping(lambda _: together.wait(), range(BUCKETS_AT_ONCE))) == [0, 1]


def test_an_error_of_a_bucket_is_raised() -> None:
    mapping = SERVED_RUNTIMES[ENCODER_RUNTIME].mapping()
    with pytest.raises(ZeroDivisionError):
        list(mapping(lambda number: 1 / number, [1, 0, 2]))
