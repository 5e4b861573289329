"""Rejections, absent servers and deadlines: each protocol, with and without asyncio."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import psutil
import pytest

from bertender.core.errors import (
    DataError,
    DeadlineError,
    OverloadedError,
    ServingError,
    UnreachableError,
)
from bertender.text.batch import Example
from serve.client.endpoint import (
    IDENTITY,
    MOST_REQUEST_BYTES,
    AsyncEndpoint,
    Classification,
    Endpoint,
    ServedModel,
)
from serve.client.protocols import (
    FIRST_WAIT_S,
    LATE,
    LONGEST_WAIT_S,
    OVERLOADED,
    PROTOCOLS,
    Tries,
)
from tests.serve import scripted
from tests.serve.scripted import HANG_S, SERVERS, Script

Classify = Callable[..., list[Classification]]


def with_endpoint(url: str, examples: Sequence[Example], **settings: Any) -> list[Classification]:
    with Endpoint(url, **settings) as endpoint:
        return endpoint.classify(examples)


def with_async_endpoint(
    url: str, examples: Sequence[Example], **settings: Any
) -> list[Classification]:
    async def ask() -> list[Classification]:
        async with AsyncEndpoint(url, **{"concurrency": 1, **settings}) as endpoint:
            return await endpoint.classify(examples)

    return asyncio.run(ask())


CLIENTS: dict[str, Classify] = {"sync": with_endpoint, "async": with_async_endpoint}
BOTH = pytest.mark.parametrize("classify", CLIENTS.values(), ids=CLIENTS)
EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)


def labels(classifications: Sequence[Classification]) -> list[Any]:
    return [each.label for each in classifications]


@contextmanager
def nobody(protocol: str) -> Iterator[str]:
    """A port that nobody listens on, and that nobody else takes."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"{protocol}://127.0.0.1:{bound.getsockname()[1]}"


@BOTH
@EVERY
def test_examples_come_back_in_their_order_over_one_connection(
    protocol: str, classify: Classify
) -> None:
    script = Script()
    with SERVERS[protocol](script) as url:
        classifications = classify(url, [(f"w{n} x",) for n in range(7)])
    assert labels(classifications) == [f"w{n}" for n in range(7)]
    assert script.asked == 4
    assert len(script.connections) == 1


@BOTH
@EVERY
def test_long_texts_are_sent_by_fewer_in_a_request(protocol: str, classify: Classify) -> None:
    long = "x" * (MOST_REQUEST_BYTES - 1)
    script = Script()
    with SERVERS[protocol](script) as url:
        found = classify(url, [(text,) for text in ("a", "b", long, "c", long, long, "d")])
    assert labels(found) == ["a", "b", long, "c", long, long, "d"]
    assert script.asked == 4, "three of two texts, and one of one"


@BOTH
@EVERY
def test_a_rejection_is_retried(protocol: str, classify: Classify) -> None:
    script = Script(["reject", "full"])
    with SERVERS[protocol](script) as url:
        assert labels(classify(url, [("pear",)])) == ["pear"]
    assert script.asked == 3


@BOTH
@EVERY
def test_a_server_that_goes_on_rejecting_is_overloaded(protocol: str, classify: Classify) -> None:
    script = Script(["reject"] * 9)
    with (
        SERVERS[protocol](script) as url,
        pytest.raises(OverloadedError, match=f"{url} rejects requests .*Exceeds maximum queue"),
    ):
        classify(url, [("pear",)], retries=2)
    assert script.asked == 3


@BOTH
@EVERY
def test_retries_go_on_until_the_deadline(protocol: str, classify: Classify) -> None:
    script = Script(["reject"] * 6)
    with SERVERS[protocol](script) as url:
        assert labels(classify(url, [("pear",)])) == ["pear"]
    assert script.asked == 7
    script = Script(["reject"] * 999)
    # the deadline may be over between two tries or in one
    with SERVERS[protocol](script) as url, pytest.raises((OverloadedError, DeadlineError)):
        classify(url, [("pear",)], timeout_s=0.5)
    assert 1 < script.asked < 999


@BOTH
@EVERY
def test_nobody_at_the_url_is_not_an_overload(protocol: str, classify: Classify) -> None:
    with nobody(protocol) as url, pytest.raises(UnreachableError, match="no endpoint responds"):
        classify(url, [("pear",)], timeout_s=5)


@BOTH
@EVERY
def test_a_refusal_is_not_retried(protocol: str, classify: Classify) -> None:
    script = Script(["refuse"])
    with SERVERS[protocol](script) as url, pytest.raises(ServingError, match="no such") as raised:
        classify(url, [("pear",)])
    assert type(raised.value) is ServingError and script.asked == 1


@BOTH
@EVERY
def test_a_refused_row_is_that_of_all_examples(protocol: str, classify: Classify) -> None:
    for steps, row in ((["ok", "refuse row 1"], 3), (["refuse row 1"], 1)):
        with (
            SERVERS[protocol](Script(steps)) as url,
            pytest.raises(ServingError, match=rf"refused: (\[[\w.]+\] )?TEXT row {row} has 9"),
        ):
            classify(url, [("pear",)] * 5)


@BOTH
@EVERY
def test_a_deadline_holds_and_is_not_retried(protocol: str, classify: Classify) -> None:
    script = Script(["hang"])
    began = time.monotonic()
    with SERVERS[protocol](script) as url:
        with pytest.raises(DeadlineError, match=r"\(.+\)\. .*--timeout-s"):
            classify(url, [("pear",)], timeout_s=0.2)
        assert time.monotonic() - began < HANG_S and script.asked == 1


@EVERY
def test_loading_the_library_of_a_protocol_takes_no_time_of_a_request(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = PROTOCOLS[protocol]
    connect = row.connect
    monkeypatch.setattr(row, "connect", lambda *given: (time.sleep(0.5), connect(*given))[1])
    with SERVERS[protocol](Script()) as url, Endpoint(url, timeout_s=0.4) as endpoint:
        assert labels(endpoint.classify([("pear",)])) == ["pear"]


@EVERY
def test_an_endpoint_goes_on_after_a_deadline(protocol: str) -> None:
    with SERVERS[protocol](Script(["hang"])) as url, Endpoint(url, timeout_s=0.3) as endpoint:
        with pytest.raises(DeadlineError):
            endpoint.classify([("pear",)])
        assert labels(endpoint.classify([("saw",)])) == ["saw"]


@BOTH
def test_a_response_that_drips_is_late(classify: Classify) -> None:
    began = time.monotonic()
    with SERVERS["http"](Script(["drip"])) as url, pytest.raises(DeadlineError):
        classify(url, [("pear",)], timeout_s=0.3)
    assert time.monotonic() - began < 5


@EVERY
def test_threads_share_an_endpoint_and_leave_nothing_behind(protocol: str) -> None:
    def ask(number: int) -> list[Any]:
        return [labels(endpoint.classify([(f"w{number}.{turn}",)])) for turn in range(20)]

    process = psutil.Process()
    with SERVERS[protocol](Script()) as url, Endpoint(url) as endpoint:
        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(ask, range(8))]
        before = process.num_fds()
        for _ in range(20):
            with ThreadPoolExecutor(1) as pool:
                pool.submit(ask, 0).result()
        grown = process.num_fds() - before
    assert found == [[[f"w{number}.{turn}"] for turn in range(20)] for number in range(8)]
    assert grown < 10


FORKED = """
import os, sys
from serve.client import Endpoint
with Endpoint(sys.argv[1], timeout_s=10) as endpoint:
    endpoint.classify([("before",)])
    child = os.fork()
    name = "parent" if child else "child"
    for turn in range(50):
        (found,) = endpoint.classify([(f"{name}{turn}",)])
        assert found.label == f"{name}{turn}", found
    if child:
        _, status = os.waitpid(child, 0)
        sys.exit(status)
"""


@EVERY
def test_a_forked_process_has_its_own_connection(protocol: str) -> None:
    with SERVERS[protocol](Script()) as url:
        code = [sys.executable, "-c", FORKED, url]
        done = subprocess.run(code, timeout=60, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_connection_that_the_server_has_closed_meanwhile_takes_no_retry() -> None:
    with SERVERS["http"](Script(["last"])) as url, Endpoint(url, retries=0) as endpoint:
        for text in ("pear", "plum"):
            assert labels(endpoint.classify([(text,)])) == [text]
            time.sleep(0.1)


@BOTH
def test_a_connection_that_the_server_has_closed_is_opened_again(classify: Classify) -> None:
    script = Script(["ok", "close"])
    with SERVERS["http"](script) as url:
        assert labels(classify(url, [("a",), ("b",), ("c",)], batch_size=1)) == ["a", "b", "c"]


@BOTH
@EVERY
@pytest.mark.parametrize("step", ["close", "reset"])
def test_what_may_have_ended_the_server_is_sent_once_more_only(
    step: str, protocol: str, classify: Classify
) -> None:
    script = Script([step] * 9)
    with (
        SERVERS[protocol](script) as url,
        pytest.raises(UnreachableError, match=f"{url} closed the connection .*one by one"),
    ):
        classify(url, [("pear",)], timeout_s=5)
    assert script.asked == 2


@BOTH
@EVERY
def test_a_server_that_starts_meanwhile_is_reached(protocol: str, classify: Classify) -> None:
    """By gRPC too, which by itself waits a second before it connects again."""
    with nobody(protocol) as url:
        port = int(url.rpartition(":")[2])

    def start() -> None:
        time.sleep(0.3)
        with SERVERS[protocol](Script(), port):
            ended.wait(10)

    ended = Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(start)
        try:
            assert labels(classify(url, [("pear",)], retries=20, timeout_s=8)) == ["pear"]
        finally:
            ended.set()


@EVERY
def test_an_endpoint_that_serves_no_classifier_is_closed(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def unreadable(config: object) -> None:
        raise KeyError("max_batch_size")

    async def enter(url: str) -> None:
        endpoint = AsyncEndpoint(url)
        with pytest.raises(KeyError):
            await endpoint.__aenter__()
        closed.append(endpoint.client is None)

    monkeypatch.setattr(ServedModel, "from_model_config", unreadable)
    with SERVERS[protocol](Script()) as url:
        asyncio.run(enter(url))
    assert closed == [True]


@EVERY
def test_a_model_of_somebody_else_is_named(protocol: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(scripted.CONFIG, "parameters")
    with SERVERS[protocol](Script()) as url, pytest.raises(ServingError) as raised:
        Endpoint(url)
    assert str(raised.value) == (
        "the model 'classifier' was not written by `bertender serve`, so that what it answers is "
        "unknown. Give the name of one that was, with model= (--model)."
    )


@BOTH
def test_a_bad_example_is_named_and_nothing_is_sent(classify: Classify) -> None:
    script = Script()
    with SERVERS["http"](script) as url, pytest.raises(DataError, match="TEXT row 1 is empty"):
        classify(url, [("pear",), (" ",)])
    assert script.asked == 0


@EVERY
@pytest.mark.parametrize("name", IDENTITY)
def test_a_model_with_other_settings_is_not_the_same(
    name: str, protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def compare(url: str) -> list[bool]:
        async with AsyncEndpoint(url) as endpoint:
            before = await endpoint.is_same_model()
            monkeypatch.setitem(scripted.CONFIG["parameters"], name, {"string_value": "7"})
            return [before, await endpoint.is_same_model()]

    with SERVERS[protocol](Script()) as url:
        assert asyncio.run(compare(url)) == [True, False]


def test_an_async_endpoint_sends_so_many_requests_at_a_time() -> None:
    script = Script()
    with SERVERS["http"](script) as url:
        examples = [(f"w{n}",) for n in range(40)]
        found = with_async_endpoint(url, examples, concurrency=3, batch_size=2)
    assert labels(found) == [text for (text,) in examples]
    assert script.asked == 20 and 1 < len(script.connections) <= 3


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def waits(tries: Tries, clock: Clock) -> Iterator[float]:
    """Wait as an endpoint does, until the error is raised."""
    while True:
        try:
            wait_s = tries.wait_after(OVERLOADED, OverloadedError("full"))
        except OverloadedError:
            return
        clock.now += wait_s
        yield wait_s


def test_waits_double_up_to_a_bound_and_are_drawn_below_it() -> None:
    clock = Clock()
    longest = [*waits(Tries(1000, 9, clock, draw=lambda: 1.0), clock)]
    assert longest[:3] == [FIRST_WAIT_S, 2 * FIRST_WAIT_S, 4 * FIRST_WAIT_S]
    assert len(longest) == 9 and max(longest) == LONGEST_WAIT_S
    halves = [*waits(Tries(1000, 9, clock, draw=lambda: 0.5), clock)]
    assert halves == [wait_s / 2 for wait_s in longest]
    drawn = [*waits(Tries(1000, 9, clock), clock)]
    assert all(0 <= mine <= most for mine, most in zip(drawn, longest, strict=True))


def test_no_wait_passes_the_deadline() -> None:
    clock = Clock()
    tries = Tries(10 * FIRST_WAIT_S, 99, clock, draw=lambda: 1.0)
    assert sum(waits(tries, clock)) < 10 * FIRST_WAIT_S
    assert tries.remaining_s > 0


def test_what_is_not_safe_is_not_tried_again() -> None:
    with pytest.raises(DeadlineError):
        Tries(60, 9).wait_after(LATE, DeadlineError("late"))
