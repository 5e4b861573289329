"""The queue of the backend: bounded in texts and in time, taken in batches, closed when empty."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from serve.backend.batches import Request, RequestQueue


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def request(name: str, texts: int, characters: int = 0) -> Request:
    return Request((("text",),) * texts, characters=characters, sender=name)


def names(queue: RequestQueue, max_texts: int) -> list[str]:
    return [each.sender for each in queue.take(max_texts)]


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
    queue = RequestQueue(max_texts=8)
    offered = [
        name
        for name, size in zip("abcdefghi", sizes, strict=False)
        if queue.offer(request(name, size))
    ]
    assert "".join(offered) == accepted
    assert names(queue, 1000) == list(accepted)
    assert queue.texts == 0 and queue.offer(request("z", 8))


@pytest.mark.parametrize(
    ("sizes", "batches"), [((1, 2, 3, 4), ["abc", "d"]), ((9, 1), ["a", "b"]), ((6, 1), ["a", "b"])]
)
def test_a_batch_is_full_but_not_over(sizes: Sequence[int], batches: list[str]) -> None:
    queue = RequestQueue(max_texts=100)
    for name, size in zip("abcd", sizes, strict=False):
        queue.offer(request(name, size))
    assert ["".join(names(queue, 6)) for _ in batches] == batches


@pytest.mark.parametrize(
    ("characters", "batches"),
    [((10, 10, 10), ["ab", "c"]), ((99, 1, 1), ["a", "bc"]), ((5, 99, 5), ["a", "b", "c"])],
)
def test_a_batch_takes_no_longer_than_a_request_may_wait(
    characters: Sequence[int], batches: list[str]
) -> None:
    queue = RequestQueue(max_texts=100, timeout_s=2.0)
    queue.measured(characters=200, seconds=20.0)
    for name, each in zip("abc", characters, strict=True):
        queue.offer(request(name, 1, each))
    assert ["".join(names(queue, 100)) for _ in batches] == batches


@pytest.mark.parametrize("timeout_s", [0.0, 0.001])
def test_before_any_batch_there_is_no_bound_of_time(timeout_s: float) -> None:
    queue = RequestQueue(max_texts=100, timeout_s=timeout_s)
    queue.measured(characters=0, seconds=9.0)  # says nothing
    for name in "ab":
        queue.offer(request(name, 1, 10**6))
    assert names(queue, 100) == ["a", "b"]


def test_later_batches_move_the_time_of_a_character() -> None:
    queue = RequestQueue(max_texts=100)
    queue.measured(characters=100, seconds=0.1)
    assert queue.seconds_per_character == pytest.approx(0.001)
    for _ in range(50):
        queue.measured(characters=100, seconds=0.4)
    assert queue.seconds_per_character == pytest.approx(0.004, rel=0.01)


def test_the_bound_is_that_of_the_moment_when_requests_are_there() -> None:
    queue = RequestQueue(max_texts=100, timeout_s=1.0)

    def come() -> None:
        queue.measured(characters=1, seconds=0.2)
        for name in "ab":
            queue.offer(request(name, 1, 4))

    worker = threading.Timer(0.05, come)
    worker.start()
    assert names(queue, 100) == ["a"]
    worker.join()


def test_those_that_wait_too_long_are_returned_once() -> None:
    clock = Clock()
    queue = RequestQueue(max_texts=8, timeout_s=2.0, clock=clock)
    queue.offer(request("early", 3))
    clock.now = 1.5
    queue.offer(request("late", 3))
    assert queue.expired() == []
    clock.now = 2.5
    (late,) = queue.expired()
    assert (late.sender, late.since, queue.texts) == ("early", 0.0, 3)
    assert (queue.expired(), names(queue, 8)) == ([], ["late"])


def test_no_timeout_is_no_timeout() -> None:
    clock = Clock()
    queue = RequestQueue(max_texts=8, clock=clock)
    queue.offer(request("early", 3))
    clock.now = 1e9
    assert queue.expired() == [] and queue.texts == 3


def test_it_hands_out_what_waits_before_it_closes() -> None:
    queue = RequestQueue(max_texts=8)
    taken: list[list[str]] = []

    def work() -> None:
        while batch := names(queue, 1):
            taken.append(batch)

    worker = threading.Thread(target=work)
    worker.start()
    for name in "abc":
        queue.offer(request(name, 1))
    queue.close()
    worker.join(10)
    assert taken == [["a"], ["b"], ["c"]] and not worker.is_alive()
