"""The queue of the backend: bounded in texts and in time, in turns of callers, left in buckets."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertender.problems.problem import Outputs
from bertender.text.batch import Batch
from serve.backend.fair_queue import HANGS_S, Bucket, FairQueue, PaddedShapes, Request
from serve.wire import WATCH_CALLER

OUTPUTS = Outputs(np.zeros((1, 2), np.float32), np.zeros(1, np.int64))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def request_of(caller: str, texts: int, **settings: Any) -> Request:
    return Request((("text",),) * texts, lambda response: None, caller=caller, **settings)


def batch_of(lengths: Sequence[int]) -> Batch:
    mask = np.array([[1] * each + [0] * (max(lengths) - each) for each in lengths])
    return Batch((("text",),) * len(lengths), {"attention_mask": mask})


def put(queue: FairQueue, caller: str, *lengths: int, **settings: Any) -> Request:
    """Put a request with texts of so many tokens into the queue, ready to run."""
    request = request_of(caller, len(lengths), **settings)
    assert not queue.offer(request)
    queue.tokenised(request, batch_of(lengths))
    return request


def take(queue: FairQueue, small: bool = False) -> Bucket:
    """Return the next bucket of a queue that has rows."""
    taken = queue.take(small=small)
    assert taken is not None
    return taken[0]


def run(queue: FairQueue) -> tuple[list[tuple[str, int]], list[Request]]:
    """Run the next bucket; return caller and tokens of its rows, and the complete requests."""
    bucket = take(queue)
    rows = [(request.caller, request.lengths[row]) for request, row in bucket]
    return rows, queue.done(bucket, dict.fromkeys(bucket, OUTPUTS))


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
    queue = FairQueue(max_texts=8)
    offered = ""
    for name, size in zip("abcdefghi", sizes, strict=False):
        request = request_of("one caller", size)
        if not queue.offer(request):
            offered += name
            queue.tokenised(request, batch_of([1] * size))
    assert offered == accepted
    while queue.texts:
        run(queue)
    assert not queue.offer(request_of("one caller", 8))


def test_a_bucket_has_rows_of_all_requests_within_its_tokens() -> None:
    queue = FairQueue(max_texts=100, tokens_per_bucket=20)
    put(queue, "a", 9, 4)
    put(queue, "b", 5, 9)
    put(queue, "c", 5)
    assert [sorted(run(queue)[0]) for _ in range(2)] == [
        [("a", 4), ("b", 5), ("c", 5)],
        [("a", 9), ("b", 9)],
    ]


def test_a_bucket_is_chosen_from_as_many_texts_as_make_a_batch() -> None:
    queue = FairQueue(max_texts=100, max_batch_size=6, tokens_per_bucket=1000)
    put(queue, "a", *[1] * 20)
    put(queue, "b", *[1] * 20)
    assert sorted(run(queue)[0]) == [("a", 1)] * 3 + [("b", 1)] * 3


def test_padding_to_few_shapes_is_in_the_tokens_of_a_bucket() -> None:
    queue = FairQueue(100, tokens_per_bucket=64, shapes=PaddedShapes(longest_input=60))
    put(queue, "a", *[9] * 5)  # 16 tokens each
    assert len(run(queue)[0]) == 4


def test_requests_leave_as_soon_as_their_own_rows_are_done() -> None:
    queue = FairQueue(max_texts=100, tokens_per_bucket=20)
    long, short = put(queue, "a", 4, 20), put(queue, "b", 4)
    rows, complete = run(queue)
    assert (sorted(rows), complete) == ([("a", 4), ("b", 4)], [short])
    assert run(queue) == ([("a", 20)], [long])
    assert sorted(long.outputs) == [0, 1]


def test_callers_take_turns_by_tokens() -> None:
    queue = FairQueue(max_texts=1000, tokens_per_bucket=64)
    for caller, length in (("long", 60), ("short", 15)):
        for _ in range(20):
            put(queue, caller, *[length] * 4)
    tokens = {"long": 0, "short": 0}
    for _ in range(24):
        for caller, length in run(queue)[0]:
            tokens[caller] += length
        assert abs(tokens["long"] - tokens["short"]) <= 64
    assert min(tokens.values()) > 600


def test_who_has_a_short_text_does_not_wait_for_who_has_many_long_ones() -> None:
    queue = FairQueue(max_texts=100, tokens_per_bucket=256)
    put(queue, "many", *[128] * 64)
    run(queue)
    for _ in range(3):
        single = put(queue, "single", 8)
        assert run(queue)[1] == [single]
        assert run(queue)[0] == [("many", 128)] * 2


def test_callers_who_come_and_go_do_not_keep_one_who_waits_from_its_turn() -> None:
    queue = FairQueue(max_texts=100, tokens_per_bucket=100)
    waiting = put(queue, "several", 100, 100, 100)
    put(queue, "visitor 0", 100)
    for visitor in range(1, 20):
        put(queue, f"visitor {visitor}", 100)  # there is always one who has had nothing
        run(queue)
    assert waiting.is_over


def test_a_caller_who_returns_has_no_turns_saved_up() -> None:
    queue = FairQueue(max_texts=1000, tokens_per_bucket=10)
    put(queue, "rare", 10)
    run(queue)
    put(queue, "busy", *[10] * 100)
    for _ in range(50):
        run(queue)
    put(queue, "rare", *[10] * 10)
    callers = [run(queue)[0][0][0] for _ in range(10)]
    assert callers.count("rare") == 5


def test_what_is_small_runs_beside_a_long_text_and_only_then() -> None:
    queue = FairQueue(max_texts=100, tokens_per_bucket=100, small_tokens=20)
    beside: list[Bucket] = []

    def work() -> None:
        while taken := queue.take(small=True):
            beside.append(taken[0])

    worker = threading.Thread(target=work)
    worker.start()
    put(queue, "a", *[10] * 10)
    alone = take(queue)  # full, but of short texts: nothing runs beside it
    put(queue, "d", 5)
    worker.join(0.02)
    assert not beside
    put(queue, "b", 200, 200)
    put(queue, "c", 9, 9, 9, 25)
    queue.done(alone, dict.fromkeys(alone, OUTPUTS))
    queue.close()
    large = take(queue)
    while queue.texts:  # a bucket of two small rows, and one of the third, beside what runs
        queue.done(large, {})
        large = take(queue)
    worker.join(10)
    assert not worker.is_alive()
    for bucket in beside:
        lengths = [request.lengths[row] for request, row in bucket]
        assert len(lengths) * max(lengths) < 20


def test_a_small_bucket_is_taken_while_a_long_text_runs() -> None:
    queue = FairQueue(max_texts=100, tokens_per_bucket=100, small_tokens=20)
    put(queue, "a", 200)
    large = take(queue)
    put(queue, "b", 200)
    put(queue, "c", 9, 9, 9)
    assert [len(take(queue, small=True)) for _ in range(2)] == [2, 1]
    queue.done(large, {})
    assert [request.caller for request, _ in take(queue)] == ["b"]


@pytest.mark.parametrize(("length", "runs"), [(50, False), (51, True)])
def test_short_texts_run_beside_one_of_over_half_a_bucket(length: int, runs: bool) -> None:
    queue = FairQueue(max_texts=100, tokens_per_bucket=100, small_tokens=20)
    put(queue, "a", length)
    large = take(queue)
    put(queue, "b", 9, 9)
    worker = threading.Thread(target=queue.take, kwargs={"small": True})
    worker.start()
    worker.join(10 if runs else 0.02)
    assert worker.is_alive() is not runs
    queue.done(large, {})
    if not runs:
        assert len(take(queue)) == 2
    queue.close()
    worker.join(10)


def test_nothing_runs_beside_what_hangs() -> None:
    queue = FairQueue(
        max_texts=100, tokens_per_bucket=100, small_tokens=20, clock=(clock := Clock())
    )
    put(queue, "a", 200)
    hanging = take(queue)
    clock.now = HANGS_S + 1
    put(queue, "probe", 3)
    found: list[Bucket] = []
    workers = [
        threading.Thread(target=lambda small=small: found.append(take(queue, small)))
        for small in (False, True)
    ]
    for worker in workers:
        worker.start()
    workers[0].join(0.02)
    assert not found
    queue.done(hanging, {})  # it was only slow
    workers[0].join(10)
    assert [[request.caller for request, _ in bucket] for bucket in found] == [["probe"]]
    put(queue, "a", 200)
    take(queue)
    put(queue, "c", 3)
    workers[1].join(10)
    assert len(found) == 2


def test_a_full_queue_has_room_for_the_watch() -> None:
    queue = FairQueue(max_texts=2)
    asked = [put(queue, "a", 3, 3), put(queue, WATCH_CALLER, 3)]
    rows, complete = run(queue)
    assert len(rows) == 3 and set(complete) == {*asked}


@pytest.mark.parametrize(
    ("newcomer", "texts", "refused"),
    [
        ("quiet", 1, ["greedy 3"]),
        ("quiet", 2, ["greedy 3"]),
        ("quiet", 3, ["greedy 3", "greedy 2"]),
        ("quiet", 5, ["newcomer"]),  # the greedy one would have less than the quiet one
        ("quiet", 6, ["newcomer"]),  # as many as the greedy one has
        ("greedy", 1, ["newcomer"]),
    ],
)
def test_a_full_queue_refuses_the_newest_request_of_the_greediest_caller(
    newcomer: str, texts: int, refused: list[str]
) -> None:
    queue = FairQueue(max_texts=8)
    put(queue, "other", 1, 1)
    named = {f"greedy {each}": put(queue, "greedy", 1, 1) for each in (1, 2, 3)}
    named["newcomer"] = request_of(newcomer, texts)
    assert queue.offer(named["newcomer"]) == [named[each] for each in refused]
    assert queue.texts == 8 + (texts - 2 * len(refused) if refused != ["newcomer"] else 0)
    over = {name for name, each in named.items() if each.is_over}
    assert over == {*refused} - {"newcomer"}


def test_one_caller_alone_has_its_newest_request_refused() -> None:
    queue = FairQueue(max_texts=4)
    put(queue, "only", 1, 1, 1, 1)
    newest = request_of("only", 1)
    assert queue.offer(newest) == [newest]
    assert queue.texts == 4


def test_what_has_begun_is_not_refused() -> None:
    queue = FairQueue(max_texts=8, tokens_per_bucket=1, timeout_s=1.0, clock=(clock := Clock()))
    begun = put(queue, "greedy", *[1] * 8)
    run(queue)
    newcomer = request_of("quiet", 2)
    assert queue.offer(newcomer) == [newcomer]
    clock.now = 2.0
    assert queue.expired() == [] and not begun.is_over


def test_the_watch_waits_as_long_as_it_must() -> None:
    queue = FairQueue(max_texts=10, timeout_s=1.0, clock=(clock := Clock()))
    put(queue, WATCH_CALLER, 3)
    late = put(queue, "a", 3)
    clock.now = 100.0
    assert queue.expired() == [late]


def test_those_that_wait_too_long_are_returned_once() -> None:
    queue = FairQueue(max_texts=8, timeout_s=2.0, clock=(clock := Clock()))
    early = put(queue, "a", 1, 1, 1)
    clock.now = 1.5
    late = put(queue, "a", 1, 1, 1)
    assert queue.expired() == []
    clock.now = 2.5
    assert queue.expired() == [early]
    assert (early.is_over, early.since, queue.texts) == (True, 0.0, 3)
    assert queue.expired() == [] and run(queue)[1] == [late]


@pytest.mark.parametrize("timeout_s", [0.0, 2.0])
def test_a_request_waits_no_longer_than_it_says_and_than_the_queue_lets_it(
    timeout_s: float,
) -> None:
    queue = FairQueue(max_texts=8, timeout_s=timeout_s, clock=(clock := Clock()))
    hasty, patient = put(queue, "a", 1, wait_s=0.5), put(queue, "b", 1, wait_s=100.0)
    plain = put(queue, "c", 1)
    clock.now = 1.0
    assert queue.expired() == [hasty]
    clock.now = 99.0
    assert queue.expired() == ([patient, plain] if timeout_s else [])


def test_no_timeout_is_no_timeout() -> None:
    queue = FairQueue(max_texts=8, clock=(clock := Clock()))
    put(queue, "a", 1)
    clock.now = 1e9
    assert queue.expired() == [] and queue.texts == 1


def test_what_is_not_tokenised_lets_others_pass() -> None:
    queue = FairQueue(max_texts=8)
    slow = request_of("a", 2)
    queue.offer(slow)
    fast = put(queue, "a", 3)
    assert run(queue) == ([("a", 3)], [fast])
    queue.tokenised(slow, batch_of([5, 4]))
    assert run(queue)[1] == [slow]


def test_a_dropped_request_does_not_run_any_more() -> None:
    queue = FairQueue(max_texts=8, tokens_per_bucket=4)
    first = put(queue, "a", 4, 4, number=7)
    second = put(queue, "b", 4, number=8)
    running = take(queue)
    assert queue.numbered(7) is first and queue.numbered(9) is None
    assert queue.drop(first) and not queue.drop(first)
    assert queue.numbered(7) is None and queue.texts == 1
    assert queue.done(running, dict.fromkeys(running, OUTPUTS)) == []
    assert run(queue)[1] == [second]
    late = request_of("a", 1)
    queue.offer(late)
    queue.drop(late)
    queue.tokenised(late, batch_of([3]))  # by a reader that did not know
    assert queue.texts == 0


def test_it_hands_out_what_waits_before_it_closes() -> None:
    queue = FairQueue(max_texts=8, tokens_per_bucket=1)
    taken: list[str] = []

    def work() -> None:
        while bucket := queue.take():
            taken.extend(request.caller for request, _ in bucket[0])

    worker = threading.Thread(target=work)
    worker.start()
    for name in "abc":
        put(queue, name, 1)
    queue.close()
    worker.join(10)
    assert taken == ["a", "b", "c"] and not worker.is_alive()


@pytest.mark.parametrize("emptied_by", ["expiry", "drop"])
def test_a_closed_queue_that_is_emptied_keeps_nobody_waiting(emptied_by: str) -> None:
    queue = FairQueue(max_texts=8, timeout_s=1.0, small_tokens=20, clock=(clock := Clock()))
    waiting = put(queue, "a", 5)
    worker = threading.Thread(target=queue.take, kwargs={"small": True})
    worker.start()
    queue.close()
    worker.join(0.02)
    assert worker.is_alive(), "nothing large runs, and something waits"
    clock.now = 2.0
    assert queue.expired() == [waiting] if emptied_by == "expiry" else queue.drop(waiting)
    worker.join(10)
    assert not worker.is_alive()


STEPS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.lists(st.integers(1, 30), min_size=1, max_size=6),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=30,
)


@given(steps=STEPS, budget=st.integers(1, 60), most=st.integers(1, 20))
def test_every_request_leaves_once_and_nothing_is_lost(
    steps: list[tuple[str, list[int], int, bool]], budget: int, most: int
) -> None:
    queue = FairQueue(most, tokens_per_bucket=budget, max_batch_size=8)
    left: list[Request] = []
    offered: list[Request] = []

    def step() -> None:
        bucket = take(queue)
        longest = max(request.lengths[row] for request, row in bucket)
        assert len(bucket) == 1 or len(bucket) * longest <= budget
        left.extend(queue.done(bucket, dict.fromkeys(bucket, OUTPUTS)))

    for caller, lengths, runs, drops in steps:
        request = request_of(caller, len(lengths))
        offered.append(request)
        refused = queue.offer(request)
        left.extend(refused)
        if request not in refused:
            queue.tokenised(request, batch_of(lengths))
            if drops and queue.drop(request):
                left.append(request)
        for _ in range(runs):
            if queue.texts:
                step()
    while queue.texts:
        step()
    assert sorted(map(id, left)) == sorted(map(id, offered))
