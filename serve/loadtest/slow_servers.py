"""Closed loops of servers whose responses may take longer than the loop was meant to."""

from __future__ import annotations

from collections.abc import Callable

from bertender.core.errors import LoadTestError
from serve.loadtest.records import LoadRun

__all__ = ["LONGEST_S", "closed_for_long_enough", "texts_per_second"]

LONGEST_S = 8.0
RESPONSES = 2
"""Of each client, at least, within the longest measurement."""

Measure = Callable[[float, float], LoadRun]
"""(measured seconds, seconds of warm-up) -> what clients got"""


def closed_for_long_enough(
    measure: Measure,
    clients: int,
    duration_s: float,
    warmup_s: float,
    longest_s: float = LONGEST_S,
) -> LoadRun:
    """Measure clients; once more, and for longer, where each has had hardly a response.

    Of a few large batches, it is chance how many end within a second.
    """
    try:
        run = measure(duration_s, warmup_s)
    except LoadTestError:  # no client has sent a second request
        return measure(max(duration_s, longest_s), 0.0)
    share = run.requests_per_second * duration_s / (RESPONSES * clients)
    longer = min(longest_s, duration_s / max(share, 1e-9))
    return run if longer <= duration_s else measure(longer, 0.0)


def texts_per_second(run: LoadRun) -> float:
    """Return the throughput of clients, also where every response came after the loop's end.

    Raises:
        LoadTestError: there is no response at all.
    """
    return run.texts_per_second or _until_the_last(run)


def _until_the_last(run: LoadRun) -> float:
    samples = zip(run.intended_s, run.latency_ms, run.outcome, strict=True)
    ends = [intended + ms / 1000 for intended, ms, outcome in samples if outcome == "ok"]
    if not ends:
        raise LoadTestError(
            f"no response at all, but {run.outcomes}. The server is too slow for such requests: "
            "send fewer texts in each, or from fewer clients."
        )
    return len(ends) * run.texts_per_request / max(ends)
