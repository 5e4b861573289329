"""The queue of the backend: bounded in texts and in time, taken in batches, closed when empty."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from serve.backend.batches import RequestQueue


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def names(queue: RequestQueue[str], max_texts: int) -> list[str]:
    return [each.request for each in queue.take(max_texts)]


@pytest.mark.parametrize(
    ("sizes", "accepted"),
    [
        ((4, 4, 1), "ab"),
        ((4, 5, 4), "ac"),
        ((1,) * 9, "abcdefgh"),
        ((9, 1), "a"),  # more than the queue holds: it waits alone, as it could never enter else
    ],
)
def test_it_is_bounded_in_texts(sizes: Sequence[int], accepted: str) -> None:
    queue = RequestQueue[str](max_texts=8)
    offered = [
        name for name, size in zip("abcdefghi", sizes, strict=False) if queue.offer(name, size)
    ]
    assert "".join(offered) == accepted
    assert names(queue, 1000) == list(accepted)
    assert queue.texts == 0 and queue.offer("z", 8)


@pytest.mark.parametrize(
    ("sizes", "batches"), [((1, 2, 3, 4), ["abc", "d"]), ((9, 1), ["a", "b"]), ((6, 1), ["a", "b"])]
)
def test_a_batch_is_full_but_not_over(sizes: Sequence[int], batches: list[str]) -> None:
    queue = RequestQueue[str](max_texts=100)
    for name, size in zip("abcd", sizes, strict=False):
        queue.offer(name, size)
    assert ["".join(names(queue, 6)) for _ in batches] == batches


@pytest.mark.parametrize(
    ("characters", "batches"),
    [((10, 10, 10), ["ab", "c"]), ((99, 1, 1), ["a", "bc"]), ((5, 99, 5), ["a", "b", "c"])],
)
def test_a_batch_has_so_many_characters(characters: Sequence[int], batches: list[str]) -> None:
    queue = RequestQueue[str](max_texts=100)
    for name, each in zip("abc", characters, strict=True):
        queue.offer(name, 1, each)
    taken = [queue.take(100, lambda: 20) for _ in batches]
    assert ["".join(each.request for each in batch) for batch in taken] == batches


def test_the_bound_is_that_of_the_moment_when_requests_are_there() -> None:
    queue, bounds = RequestQueue[str](max_texts=100), [1000.0]
    worker = threading.Timer(0.05, lambda: (bounds.append(5.0), queue.offer("a", 1, 4)))
    worker.start()
    (taken,) = queue.take(100, lambda: bounds[-1])
    assert taken.request == "a" and bounds == [1000.0, 5.0]
    worker.join()


def test_those_that_wait_too_long_are_returned_once() -> None:
    clock = Clock()
    queue = RequestQueue[str](max_texts=8, timeout_s=2.0, clock=clock)
    queue.offer("early", 3)
    clock.now = 1.5
    queue.offer("late", 3)
    assert queue.expired() == []
    clock.now = 2.5
    (late,) = queue.expired()
    assert (late.request, late.since, queue.texts) == ("early", 0.0, 3)
    assert (queue.expired(), names(queue, 8)) == ([], ["late"])


def test_no_timeout_is_no_timeout() -> None:
    clock = Clock()
    queue = RequestQueue[str](max_texts=8, clock=clock)
    queue.offer("early", 3)
    clock.now = 1e9
    assert queue.expired() == [] and queue.texts == 3


def test_it_hands_out_what_waits_before_it_closes() -> None:
    queue = RequestQueue[str](max_texts=8)
    taken: list[list[str]] = []

    def work() -> None:
        while batch := names(queue, 1):
            taken.append(batch)

    worker = threading.Thread(target=work)
    worker.start()
    for name in "abc":
        queue.offer(name, 1)
    queue.close()
    worker.join(10)
    assert taken == [["a"], ["b"], ["c"]] and not worker.is_alive()
