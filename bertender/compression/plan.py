"""The plan of a compression: what every candidate will cost, which fit, and which are trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby, zip_longest
from typing import Any

from bertender.compression.candidates import Candidate
from bertender.compression.config import CompressConfig
from bertender.compression.probes import CostModels
from bertender.compression.records import CandidateResult, Cost
from bertender.core.errors import ConfigError

__all__ = ["check_feasible", "entrants", "excess", "predicted"]

TOO_MUCH = "predicted beyond the constraints"


def predicted(
    candidates: Iterable[Candidate], models: CostModels, config: CompressConfig
) -> list[CandidateResult]:
    """Return the candidates with their predicted costs, and whether these hold the constraints."""
    results = []
    for candidate in candidates:
        cost = models[candidate.start.name, candidate.scheme].predict(candidate)
        fits = excess(cost, config) <= 1
        results.append(
            CandidateResult(
                candidate=candidate,
                predicted=cost,
                fits=fits,
                left_out=None if fits else TOO_MUCH,
            )
        )
    return results


def excess(cost: Cost, config: CompressConfig) -> float:
    """Return how many times the tightest constraint is exceeded; at most 1 where all hold."""
    limits = ((cost.model_mb, config.max_mb), (cost.single_ms, config.max_ms))
    return max((value / limit for value, limit in limits if limit is not None), default=0.0)


def check_feasible(results: Sequence[CandidateResult], config: CompressConfig) -> None:
    """Raise ConfigError with the nearest feasible point, where no candidate fits."""
    if any(result.fits for result in results):
        return
    nearest = min(results, key=lambda result: excess(result.predicted, config))
    cost = nearest.predicted
    limits = {"max_mb": config.max_mb, "max_ms": config.max_ms}
    asked = ", ".join(f"{name}={limit:g}" for name, limit in limits.items() if limit is not None)
    raise ConfigError(
        f"{asked}: none of {len(results)} candidates is predicted to hold that. The nearest is "
        f"{nearest.candidate.name}, with {cost.model_mb:.2f} MB and {cost.single_ms:.2f} ms. Give "
        f"max_mb {_up(cost.model_mb)} and max_ms {_up(cost.single_ms)} or more, or let more be cut "
        "(layers, heads, ffn, schemes, students)."
    )


def entrants(results: Sequence[CandidateResult], config: CompressConfig) -> list[CandidateResult]:
    """Return the candidates to train: of each start and depth the one with the least cut.

    More weights score better as a rule, so that a candidate that fits with more of them left takes
    the place of the others of its start and depth; of two that have as many, the one with the
    whole vocabulary, then the faster. Starts have turns, the one with the most weights left first.
    """
    fitting = [result for result in results if result.fits]
    best = [_first(group) for group in _grouped(fitting, _start_and_depth)]
    by_start = [sorted(group, key=_preference) for group in _grouped(best, _start)]
    in_turn = [each for each in chain.from_iterable(zip_longest(*by_start)) if each is not None]
    return in_turn[: config.candidates]


def _first(results: Iterable[CandidateResult]) -> CandidateResult:
    return min(results, key=_preference)


def _preference(result: CandidateResult) -> tuple[float, bool, float]:
    candidate = result.candidate
    return -candidate.remaining, candidate.vocab, result.predicted.single_ms


def _start(result: CandidateResult) -> str:
    return result.candidate.start.name


def _start_and_depth(result: CandidateResult) -> tuple[str, int]:
    return result.candidate.start.name, result.candidate.layers


def _grouped(
    results: Iterable[CandidateResult], key: Callable[[CandidateResult], Any]
) -> list[list[CandidateResult]]:
    return [[*group] for _, group in groupby(sorted(results, key=key), key)]


def _up(value: float) -> str:
    """Return a number rounded up to two digits after the point."""
    return f"{math.ceil(100 * value) / 100:.2f}"
