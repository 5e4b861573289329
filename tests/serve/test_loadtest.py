"""Load tests: on a virtual clock against queues that are known, and on small servers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar
from xml.etree import ElementTree

import numpy as np
import pytest

from bertender.core.errors import ConfigError, LoadTestError, UnreachableError
from bertender.problems.problem import Problem
from bertender.text.batch import Example
from serve.client.protocols import PROTOCOLS
from serve.loadtest import (
    LOWEST_RATE,
    MOST_LAG,
    OUTCOMES,
    LoadConfig,
    LoadRun,
    LoadTest,
    Outcome,
    Send,
    arrivals,
    check_lag,
    closed_run,
    find_limit,
    load_svg,
    load_test,
    open_run,
)
from serve.server.server import Server
from tests.front import fail, last_line, succeed
from tests.serve.scripted import SERVERS, Script
from tests.serve.virtual_time import OneServer, VirtualTimeLoop

Result = TypeVar("Result")
EVERY = pytest.mark.parametrize("protocol", PROTOCOLS)
SHORT = {"duration_s": 1.0, "warmup_s": 0.1, "input": "texts.txt"}


def virtual(coroutine: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)


def config(**settings: Any) -> LoadConfig:
    return LoadConfig(**{"duration_s": 60.0, "warmup_s": 5.0, **settings})


def at_rate(send: Send, rate: float, **settings: Any) -> LoadRun:
    return virtual(open_run(send, rate, config(**settings)))


def test_arrivals_are_those_of_a_poisson_process_and_drawn_before() -> None:
    times = arrivals(100, 200, seed=3)
    gaps = np.diff([0.0, *times])
    assert times == arrivals(100, 200, seed=3) != arrivals(100, 200, seed=4)
    assert min(gaps) > 0 and max(times) < 200
    assert len(times) == pytest.approx(20_000, rel=0.03)
    assert np.mean(gaps) == pytest.approx(0.01, rel=0.03)
    assert np.std(gaps) == pytest.approx(0.01, rel=0.05), "as long as the mean: no memory"


@pytest.mark.parametrize("use", [0.2, 0.5, 0.8])
def test_latency_in_an_open_loop_is_that_of_the_known_queue(use: float) -> None:
    """Poisson arrivals at one server of constant time: the mean wait is use / (2 (1 - use))."""
    run = at_rate(OneServer(0.01).send, use / 0.01, duration_s=200)
    expected_ms = 10 * (1 + use / (2 * (1 - use)))
    assert np.mean(run.latency_ms) == pytest.approx(expected_ms, rel=0.1)
    assert run.requests_per_second == pytest.approx(use / 0.01, rel=0.03)
    assert run.send_lag.p99_ms < 0.1 and check_lag(run) is run


def test_a_closed_loop_measures_throughput() -> None:
    run = virtual(closed_run(OneServer(0.01).send, 4, config(texts_per_request=3)))
    assert run.texts_per_second == pytest.approx(300, rel=0.01)
    assert run.latency is not None and run.latency.p50_ms == pytest.approx(40, rel=0.01)


def stalling(stall_s: float) -> Send:
    """A server that answers at once, but for one stall at 20 s."""

    async def send(number: int) -> Outcome:
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(0.001 if not 20 <= now < 20 + stall_s else 20 + stall_s - now)
        return "ok"

    return send


def test_a_stall_counts_for_all_who_would_have_come_meanwhile() -> None:
    open_loop = at_rate(stalling(2.0), 50)
    closed_loop = virtual(closed_run(stalling(2.0), 1, config()))
    assert sum(ms > 100 for ms in open_loop.latency_ms) > 80
    assert sum(ms > 100 for ms in closed_loop.latency_ms) == 1
    assert open_loop.p99_ms is not None and open_loop.p99_ms > 1000


@pytest.mark.parametrize(("held_up_s", "refused"), [(0.02, True), (0.0, False)])
def test_a_generator_that_is_late_is_refused_and_says_what_to_do(
    held_up_s: float, refused: bool
) -> None:
    async def send(number: int) -> Outcome:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        loop.block(held_up_s)
        await asyncio.sleep(0.01)
        return "ok"

    run = at_rate(send, 45)
    assert (run.lag_share > MOST_LAG) is refused
    if refused:
        with pytest.raises(LoadTestError, match=r"at 45 requests/s.*ms late.*5%.*taskset"):
            check_lag(run)
    closed = virtual(closed_run(send, 2, config()))
    assert check_lag(closed) is closed, "nobody is late where clients wait"


def outcomes_of(share: float, outcome: Outcome) -> Send:
    async def send(number: int) -> Outcome:
        await asyncio.sleep(0.001)
        return outcome if number % 1000 < 1000 * share else "ok"

    return send


@pytest.mark.parametrize("outcome", [each for each in OUTCOMES if each != "ok"])
@pytest.mark.parametrize(("share", "holds"), [(0.005, True), (0.02, False), (1.0, False)])
def test_a_request_without_a_response_lasts_for_ever(
    outcome: Outcome, share: float, holds: bool
) -> None:
    run = at_rate(outcomes_of(share, outcome), 200, duration_s=20)
    assert run.holds(50.0) is holds and (run.p99_ms is None) is not holds
    assert run.outcomes[outcome] == pytest.approx(share * len(run.outcome), rel=0.3)
    assert (run.latency is None) is (share == 1.0)


def test_the_warm_up_is_left_out() -> None:
    async def send(number: int) -> Outcome:
        cold = asyncio.get_running_loop().time() < 4.0
        await asyncio.sleep(1.0 if cold else 0.002)
        return "ok"

    run = at_rate(send, 20)
    assert max(run.latency_ms) < 10 and min(run.intended_s) >= 5.0
    assert run.requests_per_second == pytest.approx(20, rel=0.15)


def test_nothing_to_measure_is_said() -> None:
    with pytest.raises(LoadTestError, match="higher --rate"):
        at_rate(OneServer(0.01).send, 0.001)


OUTCOME_OF = {"ok": "ok", "reject": "rejected", "hang": "late", "refuse": "failed"}


@EVERY
@pytest.mark.parametrize("step", OUTCOME_OF)
def test_outcomes_of_a_server(step: str, protocol: str) -> None:
    """The first request is that which sees whether the server takes the texts."""
    script = Script(["ok", *[step] * 9999])
    settings = LoadConfig(duration_s=0.2, warmup_s=0, concurrency=1, timeout_s=0.4)
    with SERVERS[protocol](script) as url:
        (run,) = load_test(url, texts, settings).runs
    assert {name for name, count in run.outcomes.items() if count} == {OUTCOME_OF[step]}


def texts(columns: int, problem: Problem[Any]) -> list[Example]:
    return [("apple",), ("saw drill",)]


@EVERY
def test_nobody_to_test(protocol: str) -> None:
    with pytest.raises(UnreachableError):
        load_test(f"{protocol}://127.0.0.1:9", texts, LoadConfig(**SHORT, rate=10))


def test_a_sender_is_closed_where_a_request_cannot_be_prepared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []

    class Broken:
        def __init__(self, address: object, access: object, timeout_s: float) -> None: ...

        def prepare(self, model: object, columns: object) -> None:
            raise ValueError("too long")

        async def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr("serve.loadtest.SENDERS", {"http": Broken})
    settings = LoadConfig(**SHORT, rate=10, noisy=True)
    with SERVERS["http"](Script()) as url, pytest.raises(ValueError, match="too long"):
        load_test(url, texts, settings)
    assert closed == [True]


@pytest.mark.parametrize("find_limit", [True, False])
def test_a_rate_below_the_lowest_is_no_start_of_a_search(find_limit: bool) -> None:
    values = {"rate": LOWEST_RATE / 2, "find_limit": find_limit, "input": "texts.txt"}
    if not find_limit:
        assert LoadConfig.parse(values).rate == LOWEST_RATE / 2
        return
    with pytest.raises(ConfigError, match=f"rate=0.25.* {LOWEST_RATE:g} requests/s"):
        LoadConfig.parse(values)


def test_more_texts_than_a_request_takes() -> None:
    settings = LoadConfig(**SHORT, rate=10, texts_per_request=3)
    with SERVERS["http"](Script()) as url, pytest.raises(ConfigError, match="at most 2"):
        load_test(url, texts, settings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "--rate sends at so many"),
        (("--rate", "1", "--concurrency", "1"), "Give one"),
        (("--find-limit", "--concurrency", "1"), "Give one"),
        (("--rate", "1", "--task", "sst2"), "--input FILE. Give one of them"),
        (("--rate", "1", "--slo-p99-ms", "9"), "--find-limit looks for"),
    ],
)
def test_settings_that_conflict(words: tuple[str, ...], message: str) -> None:
    assert message in fail("loadtest", "http://127.0.0.1:9", "--input", "texts.txt", *words)


def test_the_command_writes_its_result_and_a_picture(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("apple\nsaw drill\n", encoding="utf-8")
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    files = ("--input", tmp_path / "texts.txt", "--out", out, "--plot", plot)
    quick = ("--concurrency", "2", "--duration-s", "2", "--warmup-s", "0.05")
    with SERVERS["http"](Script()) as url:
        shown = succeed("loadtest", url, *files, *quick).stdout
        printed = last_line(succeed("loadtest", url, *files, *quick, "--json"))
    saved = LoadTest.model_validate_json(out.read_text(encoding="utf-8"))
    assert shown.startswith("2 clients of 1 texts: p50 ") and " ok; " in shown
    assert LoadTest.model_validate(printed) == saved
    assert (saved.texts, saved.protocol, saved.limit) == (2, "http", None)
    assert saved.runs[0].outcomes["ok"] == len(saved.runs[0].latency_ms) > 0
    assert polylines(plot.read_text(encoding="utf-8")) == 1


def polylines(svg: str) -> int:
    return len(ElementTree.fromstring(svg).findall("{*}polyline"))


def test_a_search_is_drawn_by_rate(served_test: LoadTest) -> None:
    runs = [at_rate(OneServer(0.01).send, rate, duration_s=20) for rate in (80.0, 20.0, 200.0)]
    limit = find_limit(lambda rate: runs[0 if rate < 90 else 2], 500.0)
    drawn = load_svg(served_test.model_copy(update={"runs": tuple(runs), "limit": limit}))
    assert polylines(drawn) == 3 and "limit of the p99: 500 ms" in drawn
    unanswered = at_rate(outcomes_of(1.0, "failed"), 20.0, duration_s=9)
    assert polylines(load_svg(served_test.model_copy(update={"runs": (unanswered,)}))) == 0
    half = at_rate(outcomes_of(0.5, "rejected"), 20.0, duration_s=200)
    drawn = load_svg(served_test.model_copy(update={"runs": (half,)}))
    line = ElementTree.fromstring(drawn).find("{*}polyline")
    furthest = float(line.get("points").split()[-1].split(",")[0])
    assert furthest < 200, "up to p50, as half of the requests have no response"


@pytest.fixture
def served_test() -> LoadTest:
    with SERVERS["http"](Script()) as url:
        return load_test(url, texts, LoadConfig(**SHORT, concurrency=1))


@pytest.mark.server
@EVERY
def test_the_real_server_under_load(served: Server, protocol: str) -> None:
    url = {"http": served.http_url, "grpc": served.grpc_url}[protocol]
    test = load_test(url, texts, LoadConfig(**SHORT, concurrency=2, texts_per_request=4))
    (run,) = test.runs
    assert run.outcomes == {"ok": len(run.outcome), "rejected": 0, "late": 0, "failed": 0}
    assert run.latency is not None and 0 < run.latency.p50_ms <= run.latency.p99_ms
    assert len(test.model) == 64 and run.texts_per_second > 4
