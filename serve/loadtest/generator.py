"""Generator: runs a loop, leaves out its warm-up, and computes the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from bertender.core.errors import LoadTestError
from bertender.measure.samples import percentiles
from serve.loadtest.config import LoadConfig
from serve.loadtest.loops import Sample, Send, arrivals, closed_loop, open_loop
from serve.loadtest.records import OUTCOMES, LoadRun

__all__ = ["MOST_LAG", "check_lag", "closed_run", "open_run"]

MOST_LAG = 0.05
"""Of the median latency; above it, the generator is measured more than the server."""


async def open_run(send: Send, rate: float, config: LoadConfig) -> LoadRun:
    """Measure the latency at a rate."""
    times_s = arrivals(rate, config.warmup_s + config.duration_s, config.seed)
    return _run(await open_loop(send, times_s), config, rate=rate)


async def closed_run(send: Send, concurrency: int, config: LoadConfig) -> LoadRun:
    """Measure the throughput of so many clients."""
    length_s = config.warmup_s + config.duration_s
    return _run(await closed_loop(send, concurrency, length_s), config, concurrency=concurrency)


def check_lag(run: LoadRun) -> LoadRun:
    """Return a run whose requests were sent in time.

    Raises:
        LoadTestError: they were not, so that its latencies are not those of the server.
    """
    if run.rate is not None and run.latency and run.lag_share > MOST_LAG:
        raise LoadTestError(
            f"at {run.rate:.4g} requests/s, the load generator sent {run.send_lag.p50_ms:.3g} ms "
            f"late (median), {run.lag_share:.0%} of the median latency, {run.latency.p50_ms:.3g} "
            f"ms; allowed are {MOST_LAG:.0%}. It needs a core of its own: start it with `taskset "
            "-c 1` and the server with `taskset -c 0`, or send from another machine. A lower "
            "--rate and more --texts-per-request help too."
        )
    return run


def _run(
    samples: Sequence[Sample],
    config: LoadConfig,
    rate: float | None = None,
    concurrency: int | None = None,
) -> LoadRun:
    end_s = config.warmup_s + config.duration_s
    measured = [each for each in samples if config.warmup_s <= each.intended_s < end_s]
    if not measured:
        raise LoadTestError(
            f"no request falls into the {config.duration_s:g} s that are measured. Send more: a "
            "higher --rate, or a longer --duration-s."
        )
    latency_ms = np.array([1000 * each.latency_s for each in measured])
    lag_ms = np.array([1000 * each.lag_s for each in measured])
    succeeded = np.array([each.outcome == "ok" for each in measured])
    counts = Counter(each.outcome for each in measured)
    return LoadRun(
        rate=rate,
        concurrency=concurrency,
        texts_per_request=config.texts_per_request,
        duration_s=config.duration_s,
        outcomes={outcome: counts[outcome] for outcome in OUTCOMES},
        latency=percentiles(latency_ms[succeeded]) if succeeded.any() else None,
        p99_ms=_p99(np.where(succeeded, latency_ms, math.inf)),
        send_lag=percentiles(lag_ms),
        requests_per_second=_within(samples, config.warmup_s, end_s) / config.duration_s,
        intended_s=tuple(round(each.intended_s, 6) for each in measured),
        lag_ms=tuple(lag_ms.round(3).tolist()),
        latency_ms=tuple(latency_ms.round(3).tolist()),
        outcome=tuple(each.outcome for each in measured),
    )


def _p99(latency_ms: npt.NDArray[np.float64]) -> float | None:
    """Return the 99th percentile without interpolation, which infinity would spoil."""
    value = float(np.percentile(latency_ms, 99, method="higher"))
    return value if math.isfinite(value) else None


def _within(samples: Sequence[Sample], start_s: float, end_s: float) -> int:
    """Return how many responses came in a time, whenever they were asked for."""
    ended = (each.intended_s + each.latency_s for each in samples if each.outcome == "ok")
    return sum(start_s <= at < end_s for at in ended)
