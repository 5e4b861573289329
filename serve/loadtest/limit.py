"""Search of the highest rate that holds a p99."""

from __future__ import annotations

import math
from collections.abc import Callable

from bertender.core.errors import LoadTestError
from serve.loadtest.config import LOWEST_RATE
from serve.loadtest.records import Limit, LoadRun

__all__ = ["FIRST_RATE", "WITHIN", "find_limit"]

FIRST_RATE = 16.0
WITHIN = 0.05
"""The rate that holds and the one that does not are this near, as a share."""


def find_limit(
    probe: Callable[[float], LoadRun], slo_p99_ms: float, first_rate: float = FIRST_RATE
) -> Limit:
    """Double the rate until it does not hold (or halve it until it does), then bisect.

    Args:
        probe: measures a rate, or raises LoadTestError.
        slo_p99_ms: what must hold; a request without a response breaks it.
        first_rate: where to begin.

    Returns:
        The limit; a lower bound where a rate cannot be measured.

    Raises:
        LoadTestError: no rate holds it, or none could be measured that does.
    """
    holds, breaks = 0.0, math.inf
    rate = first_rate
    while breaks > holds * (1 + WITHIN):
        if rate < LOWEST_RATE:
            raise LoadTestError(
                f"even {breaks:.3g} requests/s do not hold a p99 of {slo_p99_ms:g} ms. Allow more "
                "with --slo-p99-ms, or send fewer --texts-per-request."
            )
        try:
            is_held = probe(rate).holds(slo_p99_ms)
        except LoadTestError as error:
            if not holds:
                raise
            above = None if math.isinf(breaks) else breaks
            return Limit(slo_p99_ms=slo_p99_ms, rate=holds, above=above, lower_bound=str(error))
        holds, breaks = (rate, breaks) if is_held else (holds, rate)
        rate = _between(holds, breaks)
    return Limit(slo_p99_ms=slo_p99_ms, rate=holds, above=breaks)


def _between(holds: float, breaks: float) -> float:
    """Return the rate to measure next."""
    if math.isinf(breaks):
        return 2 * holds
    return math.sqrt(holds * breaks) if holds else breaks / 2
