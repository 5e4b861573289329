"""A model served near its limit for minutes, and then at twice the limit.

The limit is the highest rate that holds a p99, as `bertender loadtest --find-limit` finds it. At
80 % of it, requests come for minutes, and the resident memory of the server's processes is read
after every segment. Then they come at twice the limit. Goodput counts responses within the p99. The
timeout of the queue is two fifths of the p99, since a batch takes as long again, and Triton a
little. Last, a server with default settings gets twice the limit too.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks import servers
from benchmarks.cells import DASH, Table, machine, two
from benchmarks.harness import Noisy, Out, Row, Run, ServedArtifact, record, watched

SHARE, OVERLOAD = 0.8, 2.0
"""Rate as a share of the limit: for minutes, and afterwards."""
TIMEOUT_SHARE = 0.4
"""Longest wait in the queue, as a share of the p99 that must hold."""
AIMS = {"growth": "under 5%", "rejection": "under 50 ms", "goodput": "at least 90%"}


def run(
    artifact: ServedArtifact,
    limit: Annotated[float, typer.Option(help="requests/s that hold the p99")],
    out: Out = None,
    task: servers.TaskName = "sst2",
    minutes: Annotated[float, typer.Option(help="at 80 % of the limit")] = 10.0,
    segment_s: Annotated[float, typer.Option(help="between two readings of memory")] = 20.0,
    slo_p99_ms: Annotated[float, typer.Option(help="p99 that must hold")] = 50.0,
    pin: servers.Pin = True,
    noisy: Noisy = False,
) -> None:
    """Serve a model near its limit for minutes, and then beyond it."""
    model, pins, texts = servers.servable(artifact), servers.pins_of(pin), servers.texts_of(task)
    timeout_ms = TIMEOUT_SHARE * slo_p99_ms
    rows = []
    with watched(noisy, out) as meter:
        with servers.endpoint(model, texts, pins, queue_timeout_ms=timeout_ms) as (server, asked):
            for _ in range(max(5, round(60 * minutes / segment_s))):
                segment = servers.outcomes(asked.at_rate(SHARE * limit, segment_s))
                memory = {"bytes_of": servers.memory_of(server)}
                rows.append({"kind": "segment", **segment, "memory": memory})
            overload = _overload(asked, OVERLOAD * limit, segment_s, slo_p99_ms)
            memory = {"bytes_of": servers.memory_of(server)}
            rows.append({"kind": "overload", **overload, "memory": memory})
        with servers.endpoint(model, texts, pins) as (_, asked):
            by_default = _overload(asked, OVERLOAD * limit, segment_s, slo_p99_ms)
            rows.append({"kind": "overload by default", **by_default})
    about = {
        **servers.facts_of(model),
        "config": {"minutes": minutes, "segment_s": segment_s, "queue_timeout_ms": timeout_ms},
        "limit": {"slo_p99_ms": slo_p99_ms, "rate": limit},
        "rate": SHARE * limit,
    }
    record("soak", rows, out, meter.load, **about)


def _overload(asked: servers.Asked, rate: float, seconds: float, slo_p99_ms: float) -> Row:
    found = asked.at_rate(rate, seconds)
    outcome, latency_ms = np.array(found.outcome), np.array(found.latency_ms)
    ok, rejected = (latency_ms[outcome == each] for each in ("ok", "rejected"))

    def percentile(values: Any, percent: float) -> float | None:
        return round(float(np.percentile(values, percent)), 3) if values.size else None

    return {
        "rate": rate,
        "duration_s": seconds,
        "outcomes": dict(found.outcomes),
        "within_slo": int((ok <= slo_p99_ms).sum()),
        "p50_ms": percentile(ok, 50),
        "rejected_p50_ms": percentile(rejected, 50),
        "rejected_p99_ms": percentile(rejected, 99),
    }


def table(runs: Sequence[Run]) -> Table:
    """Memory, goodput and rejections, next to their aims."""
    (result,) = runs
    segments = [row for row in result.rows if row["kind"] == "segment"]
    overload, by_default = result.rows[-2:]
    limit, slo = result.about["limit"]["rate"], result.about["limit"]["slo_p99_ms"]
    totals = [sum(row["memory"]["bytes_of"].values()) for row in segments]
    part = max(1, len(totals) // 5)
    # runtimes reserve memory at sizes that they see first in the first fifth
    early, late = totals[part : 2 * part], totals[-part:]
    growth = statistics.median_high(late) / statistics.median_high(early) - 1
    sums = sum((Counter(row["outcomes"]) for row in segments), Counter[str]())
    minutes = f"{result.about['config']['minutes']:.0f} minutes"
    good, default_good = (
        f"{row['within_slo'] / row['duration_s'] / limit:.0%}" for row in (overload, by_default)
    )
    within = f"Responses within {slo:g} ms at twice the limit, of the limit"
    rows = [
        [f"Memory, after {minutes}", f"{totals[-1] / 1e6:.0f} MB", DASH],
        ["Its growth, from the second fifth to the last", f"{growth:+.1%}", AIMS["growth"]],
        [f"Requests with a response in {minutes}", f"{sums['ok'] / sums.total():.1%}", DASH],
        [within, good, AIMS["goodput"]],
        ["A rejection then, p99", f"{two(overload['rejected_p99_ms'])} ms", AIMS["rejection"]],
        ["Responses within it with the default queue, of the limit", default_good, DASH],
    ]
    note = (
        f"{result.about['precision']}, single texts over gRPC, {result.about['rate']:.0f} requests "
        f"a second for {minutes}, which is {SHARE:.0%} of the limit; then twice the limit. "
        f"{machine(result)}, one core."
    )
    return Table(["What", "Value", "Aim"], rows, note)
