"""SERVED_RUNTIMES: every way to run buckets."""

from __future__ import annotations

import threading

from bertender.models.runtimes import RUNTIMES
from serve.backend.running import bucket_runner
from serve.config import SERVED_RUNTIMES
from tests.serve.layouts import ENCODER_RUNTIME


def test_every_runtime_serves() -> None:
    in_process = {name for name, row in SERVED_RUNTIMES.items() if row.in_process == name}
    assert in_process == RUNTIMES.keys()
    others = SERVED_RUNTIMES.keys() - in_process
    assert others == {ENCODER_RUNTIME}
    assert all(SERVED_RUNTIMES[name].triton_backend for name in others)


def test_another_model_has_the_next_bucket_while_it_runs_one() -> None:
    row = SERVED_RUNTIMES[ENCODER_RUNTIME]
    together = threading.Barrier(row.buckets_at_once, timeout=10)
    runner = bucket_runner(row.buckets_at_once)
    try:
        assert sorted(runner.run(lambda _: together.wait(), range(row.buckets_at_once))) == [0, 1]
    finally:
        runner.close()
