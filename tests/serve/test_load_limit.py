"""The search of the highest rate: what it finds, and what is left of one that ends early."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bertender.core.errors import LoadTestError, MachineBusyError
from bertender.core.machine import MachineLoad
from serve import loadtest as measure
from serve.loadtest import (
    LOWEST_RATE,
    WITHIN,
    LoadConfig,
    LoadRun,
    LoadTest,
    find_limit,
    load_test,
)
from tests.front import invoke, last_line
from tests.serve.scripted import SERVERS, Script
from tests.serve.test_loadtest import at_rate, texts
from tests.serve.virtual_time import OneServer

QUIET, BUSY = (MachineLoad(other_work=share, steal=0.0) for share in (0.0, 0.5))
SEARCH: dict[str, Any] = {
    "find_limit": True,
    "rate": 10,
    "slo_p99_ms": 1000.0,
    "duration_s": 0.2,
    "warmup_s": 0.0,
}
LATE_ABOVE = 30.0


@pytest.mark.one_path
@pytest.mark.parametrize("first_rate", [200.0, 16.0, 1.0])
def test_the_limit_of_a_known_queue(first_rate: float) -> None:
    """10 ms for each: what is found holds, a little more does not.

    By theory: of waits in this queue, a share of about (1 - r) / (r e^t - 1) e^(-4 t) is above four
    services, where r (e^t - 1) = t; it is 1 % at a use r of 0.56.
    """
    runs: dict[float, LoadRun] = {}

    def probe(rate: float) -> LoadRun:
        runs[rate] = at_rate(OneServer(0.01).send, rate, duration_s=50)
        return runs[rate]

    limit = find_limit(probe, 50.0, first_rate)
    assert runs[limit.rate].holds(50.0) and not runs[limit.above].holds(50.0)
    assert limit.rate < limit.above <= limit.rate * (1 + WITHIN)
    assert limit.rate == pytest.approx(56, rel=0.1)
    assert len(runs) < 20


def test_no_rate_that_holds() -> None:
    asked = []

    def probe(rate: float) -> LoadRun:
        asked.append(rate)
        return at_rate(OneServer(0.01).send, 10)

    with pytest.raises(LoadTestError, match="--slo-p99-ms"):
        find_limit(probe, 1.0)
    assert min(asked) >= LOWEST_RATE


@pytest.mark.parametrize(("late_from", "above"), [(60.0, None), (45.0, 64.0)])
def test_a_search_that_ends_early_has_a_lower_bound(late_from: float, above: float | None) -> None:
    """Of a generator that is late while rates are doubled, or while they are bisected."""

    def probe(rate: float) -> LoadRun:
        if late_from <= rate != above:
            raise LoadTestError(f"at {rate:g} requests/s, late")
        return at_rate(OneServer(0.01).send, rate, duration_s=20)

    limit = find_limit(probe, 50.0, 16.0)
    assert (limit.rate, limit.above) == (32.0, above)
    assert limit.lower_bound is not None and limit.lower_bound.endswith("requests/s, late")


def test_a_search_that_ends_before_a_rate_holds_has_no_limit() -> None:
    def probe(rate: float) -> LoadRun:
        raise LoadTestError("late")

    with pytest.raises(LoadTestError, match="late"):
        find_limit(probe, 50.0)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that sends in time up to a rate."""

    def check_lag(run: LoadRun) -> LoadRun:
        if (run.rate or 0) > LATE_ABOVE:
            raise LoadTestError(f"at {run.rate:g} requests/s, the generator was late.")
        return run

    monkeypatch.setattr(measure, "check_lag", check_lag)


@pytest.fixture
def busy_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that other work has come to, and a generator that ends the search."""
    loads = [QUIET, BUSY]
    monkeypatch.setattr(measure, "load_now", lambda: loads.pop(0))


@pytest.mark.usefixtures("late", "busy_afterwards")
def test_a_machine_that_becomes_busy_leaves_a_lower_bound() -> None:
    with SERVERS["http"](Script()) as url:
        test = load_test(url, texts, LoadConfig(**SEARCH))
    assert test.limit is not None and (test.limit.rate, test.limit.above) == (20.0, None)
    assert test.limit.lower_bound is not None and "busy" in test.limit.lower_bound
    assert test.load == BUSY and [run.rate for run in test.runs] == [10.0, 20.0]


@pytest.mark.usefixtures("busy_afterwards")
def test_what_disturbed_work_did_not_hold_is_no_bound_from_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rate that holds is a lower bound all the same: other work only makes a server slower."""
    found = find_limit(lambda rate: at_rate(OneServer(0.01).send, rate, duration_s=20), 50.0)
    monkeypatch.setattr(measure, "find_limit", lambda *settings: found)
    with SERVERS["http"](Script()) as url:
        test = load_test(url, texts, LoadConfig(**SEARCH))
    assert test.limit is not None and found.above is not None
    assert (test.limit.rate, test.limit.above) == (found.rate, None)
    assert test.limit.lower_bound is not None and "this machine is busy" in test.limit.lower_bound


@pytest.mark.usefixtures("busy_afterwards")
def test_a_single_rate_on_a_machine_that_becomes_busy_is_refused() -> None:
    settings = LoadConfig(concurrency=1, duration_s=0.1, warmup_s=0)
    with SERVERS["http"](Script()) as url, pytest.raises(MachineBusyError):
        load_test(url, texts, settings)


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_reports_a_lower_bound_and_fails(as_json: bool, tmp_path: Path) -> None:
    """With what was measured in its output and its files, and status 1: it is not the limit."""
    (tmp_path / "texts.txt").write_text("apple\nsaw drill\n", encoding="utf-8")
    out, plot = tmp_path / "out.json", tmp_path / "out.svg"
    flags = [
        part
        for name, value in {**SEARCH, "input": tmp_path / "texts.txt"}.items()
        for part in (
            (f"--{name.replace('_', '-')}",)
            if value is True
            else (f"--{name.replace('_', '-')}", str(value))
        )
    ]
    files = ("--out", str(out), "--plot", str(plot), *(["--json"] if as_json else []))
    with SERVERS["http"](Script()) as url:
        result = invoke("loadtest", url, *flags, *files)
    assert result.exit_code == 2
    assert re.search(r"error: the search ended .* at 40 requests/s, the generator", result.stderr)
    saved = LoadTest.model_validate_json(out.read_text(encoding="utf-8"))
    assert saved.limit is not None and saved.limit.rate == 20.0
    assert saved.limit.lower_bound == "at 40 requests/s, the generator was late."
    assert "at least 20 requests/s: a lower bound" in plot.read_text(encoding="utf-8")
    if as_json:
        assert LoadTest.model_validate(last_line(result)) == saved
    else:
        line = "at least 20 requests/s (20 texts/s) hold a p99 of 1000 ms: a lower bound"
        assert line in " ".join(result.stdout.split())
