"""Who runs the buckets of a batch: one after another, or several at once.

A run of the model with one thread leaves the other cores unused, and a run with all of them spends
part of its time on waiting for each other. Where several buckets run at once, each with few
threads, the cores need not wait. A runtime lets go of Python's lock while it runs, so that threads
are enough; all of them share one copy of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Protocol, TypeVar

__all__ = ["BucketPool", "BucketRunner", "OneByOne", "bucket_runner"]

Item = TypeVar("Item")
Result = TypeVar("Result")


class BucketRunner(Protocol):
    """Applies a function to each bucket."""

    at_once: int
    """Most buckets that run at the same time."""

    def run(self, function: Callable[[Item], Result], buckets: Sequence[Item]) -> Sequence[Result]:
        """Return the results in the order of the buckets, or raise the first error of one.

        Nothing runs any more when it returns or raises.
        """
        ...

    def close(self) -> None:
        """End its threads."""


class OneByOne:
    """Buckets one after another, in the thread that asks."""

    at_once = 1

    def run(self, function: Callable[[Item], Result], buckets: Sequence[Item]) -> Sequence[Result]:
        return [function(bucket) for bucket in buckets]

    def close(self) -> None: ...


class BucketPool:
    """Buckets on threads of their own, `at_once` at a time; a single one needs none of them."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.threads = ThreadPoolExecutor(at_once, thread_name_prefix="bucket")

    def run(self, function: Callable[[Item], Result], buckets: Sequence[Item]) -> Sequence[Result]:
        if len(buckets) < 2:
            return [function(bucket) for bucket in buckets]
        runs = [self.threads.submit(function, bucket) for bucket in buckets]
        wait(runs, return_when=FIRST_EXCEPTION)
        for run in runs:
            run.cancel()  # those that have not begun: they stand behind the one that failed
        wait(runs)  # those that have: the batch may run again, request by request
        return [run.result() for run in runs]

    def close(self) -> None:
        self.threads.shutdown()


def bucket_runner(at_once: int) -> BucketRunner:
    """Return what runs so many buckets at once."""
    return BucketPool(at_once) if at_once > 1 else OneByOne()
