"""Candidates that are predicted near a limit: a probe of each decides whether it holds that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bertender.compression.candidates import Candidate
from bertender.compression.config import CompressConfig
from bertender.compression.plan import TOO_MUCH, excess, preferred
from bertender.compression.probes import Measured
from bertender.compression.records import CandidateResult, Cost, Probe
from bertender.core.errors import ConfigError, ModelError, ParityError

__all__ = ["NEAR", "decided", "decided_near_limits", "undecided"]

NEAR = 0.05
"""Share of a limit: a prediction that is closer to it may be wrong about whether it is held."""
PROBE_TOO_MUCH = "beyond the limits, as a probe of it was measured"


def decided_near_limits(
    results: Sequence[CandidateResult],
    config: CompressConfig,
    measure: Callable[[Candidate], Measured],
) -> tuple[list[CandidateResult], list[Measured]]:
    """Return the candidates, none that would be trained undecided, and the probes of those.

    Where a probe holds no limit, another candidate takes its place, and may be near one too.

    Args:
        results: every candidate.
        config: the limits.
        measure: makes a probe of a candidate; one of which it can make none is left out.
    """
    decisions, made = list(results), []
    while near := undecided(decisions, config):
        for candidate in near:
            try:
                measured = measure(candidate)
            except (ConfigError, ModelError, ParityError) as error:
                decisions = _without(decisions, candidate, str(error))
            else:
                made.append(measured)
                decisions = decided(decisions, measured.probes, config)
    return decisions, made


def undecided(results: Sequence[CandidateResult], config: CompressConfig) -> list[Candidate]:
    """Return the candidates that would be trained, and are only predicted, near a limit."""
    wanted = preferred([each for each in results if _may_fit(each, config)], config)
    return [
        each.candidate
        for each in wanted
        if each.probe is None and excess(each.predicted, config) > 1 - NEAR
    ]


def decided(
    results: Sequence[CandidateResult], probes: Iterable[Probe], config: CompressConfig
) -> list[CandidateResult]:
    """Return the candidates, those of the probes with what these were measured at."""
    costs = {each.candidate: each.cost for each in probes}
    return [_decided(each, costs.get(each.candidate), config) for each in results]


def _may_fit(result: CandidateResult, config: CompressConfig) -> bool:
    if result.probe is not None or result.left_out not in (None, TOO_MUCH):
        return result.fits
    return excess(result.predicted, config) <= 1 + NEAR


def _decided(result: CandidateResult, cost: Cost | None, config: CompressConfig) -> CandidateResult:
    if cost is None:
        return result
    fits = excess(cost, config) <= 1
    return result.model_copy(
        update={"probe": cost, "fits": fits, "left_out": None if fits else PROBE_TOO_MUCH}
    )


def _without(
    results: Sequence[CandidateResult], candidate: Candidate, reason: str
) -> list[CandidateResult]:
    """Return the candidates, one of which is left out."""
    return [
        each.model_copy(update={"fits": False, "left_out": reason, "refused": True})
        if each.candidate == candidate
        else each
        for each in results
    ]
