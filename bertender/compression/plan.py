"""The plan of a compression: what every candidate will cost, which fit, and which are trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, groupby, zip_longest
from typing import Any

from bertender.compression.candidates import Candidate, Start
from bertender.compression.config import CompressConfig
from bertender.compression.probes import CostModels
from bertender.compression.records import CandidateResult, CompressionReport, Cost
from bertender.compression.variants import variants_of
from bertender.core.errors import ConfigError

__all__ = [
    "TOO_MUCH",
    "check_any",
    "check_feasible",
    "entrants",
    "excess",
    "none_holds",
    "predicted",
    "preferred",
    "with_trained",
]

TOO_MUCH = "predicted beyond the limits"


def predicted(
    candidates: Iterable[Candidate], models: CostModels, config: CompressConfig
) -> list[CandidateResult]:
    """Return the candidates with their predicted costs, and whether these hold the limits."""
    results = []
    for candidate in candidates:
        if (key := (candidate.start.name, candidate.variant)) not in models:
            continue  # no probe of its start and variant could be made
        if not models[key].covers(candidate):
            continue  # nor of its depth
        cost = models[key].predict(candidate)
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
    """Return how many times the tightest limit is exceeded; at most 1 where all hold."""
    return max((of(cost) / limit for _, limit, of in _limits(config)), default=0.0)


def check_any(
    candidates: Sequence[Candidate], starts: Sequence[Start], config: CompressConfig
) -> None:
    """Raise ConfigError where the settings leave no candidate."""
    if candidates:
        return
    depths = ", ".join(f"{start.name} {start.layers}" for start in starts)
    asked = ",".join(map(str, config.layers))
    raise ConfigError(
        f"layers={asked}: no start has a depth among these. The layers that there are: {depths}. "
        "Give depths up to one of them, or other students."
    )


def check_feasible(results: Sequence[CandidateResult], config: CompressConfig) -> None:
    """Raise ConfigError with the nearest feasible point, where no candidate fits."""
    if any(result.fits for result in results):
        return
    nearest = min(results, key=lambda result: excess(result.cost, config))
    raise ConfigError(
        f"{_asked(config)}: none of {len(results)} candidates is expected to hold that. "
        f"{_nearest(nearest, config)} Or let more be cut, or try more variants (layers, "
        "heads, ffn, students, schemes, runtimes, fused_attention)."
    )


def none_holds(finished: Sequence[CandidateResult], config: CompressConfig) -> str:
    """Return the error where no trained candidate holds the limits."""
    tried = [each for each in finished if each.measured is not None]
    if not tried:
        reasons = "; ".join(f"{each.candidate.name}: {each.left_out}" for each in finished)
        return (
            f"no candidate could be quantized. {reasons}. Give other schemes or runtimes; where "
            "one label is predicted everywhere, another learning_rate or more epochs."
        )
    nearest = min(tried, key=lambda each: excess(each.cost, config))
    return (
        f"{_asked(config)}: no trained candidate holds that as measured. "
        f"{_nearest(nearest, config)} Or give more candidates."
    )


def with_trained(
    report: CompressionReport, done: Sequence[CandidateResult], chosen: Sequence[CandidateResult]
) -> CompressionReport:
    """Return a report with the candidates that were trained, and why the others were not."""
    trained = {each.candidate for each in done}
    rest = [each for each in report.candidates if each.candidate not in trained]
    rounds = {(one.candidate.shape_name, each) for one in done for each in one.rounds}
    minutes = sum(each.minutes for _, each in rounds)
    others = (_passed_over(each, chosen) for each in rest)
    return report.model_copy(update={"candidates": (*done, *others), "minutes": minutes})


def _passed_over(result: CandidateResult, chosen: Sequence[CandidateResult]) -> CandidateResult:
    """Return a candidate that was only predicted, with the reason."""
    if not result.fits:
        return result
    key = _start_and_depth(result)
    rival = any(_start_and_depth(each) == key for each in chosen)
    less_cut = "another one of its start and depth has as many weights left, or more"
    reason = less_cut if rival else "others fill the number of candidates to train"
    return result.model_copy(update={"left_out": reason})


def _asked(config: CompressConfig) -> str:
    return ", ".join(f"{name}={limit:g}" for name, limit, _ in _limits(config))


def _nearest(result: CandidateResult, config: CompressConfig) -> str:
    """Return the point nearest to the limits, and the limits that it would hold."""
    cost = result.cost
    wider = " and ".join(f"{name} {_up(of(cost))}" for name, _, of in _limits(config))
    return (
        f"The nearest is {result.candidate.name}, with {cost.model_mb:.2f} MB and "
        f"{cost.single_ms:.2f} ms. Give {wider} or more."
    )


def _limits(config: CompressConfig) -> list[tuple[str, float, Callable[[Cost], float]]]:
    """Return the limits that are set: name, value, and what they bound of a cost."""
    limits: list[tuple[str, float | None, Callable[[Cost], float]]] = [
        ("max_mb", config.max_mb, lambda cost: cost.model_mb),
        ("max_ms", config.max_ms, lambda cost: cost.single_ms),
    ]
    return [(name, limit, of) for name, limit, of in limits if limit is not None]


def entrants(results: Sequence[CandidateResult], config: CompressConfig) -> list[CandidateResult]:
    """Return the candidates to train: of each start and depth the one with the least cut.

    More weights score better as a rule, so that a candidate that fits with more of them left takes
    the place of the others of its start and depth; of two that have as many, the one with the
    whole vocabulary, then the first variant: two schemes may differ in time by no more than noise,
    and then in what they lose; and another runtime is for what lets less be cut. Starts have
    turns, the one with the most weights left first.
    """
    return preferred([each for each in results if each.fits], config)


def preferred(results: Sequence[CandidateResult], config: CompressConfig) -> list[CandidateResult]:
    order = {variant: place for place, variant in enumerate(variants_of(config))}
    listed = sorted(results, key=lambda result: order[result.candidate.variant])
    best = [_first(group) for group in _grouped(listed, _start_and_depth)]
    by_start = [sorted(group, key=_preference) for group in _grouped(best, _start)]
    by_start.sort(key=lambda group: _preference(group[0]))
    in_turn = [each for each in chain.from_iterable(zip_longest(*by_start)) if each is not None]
    return in_turn[: config.candidates]


def _first(results: Iterable[CandidateResult]) -> CandidateResult:
    return min(results, key=_preference)


def _preference(result: CandidateResult) -> tuple[float, bool]:
    """Return what sorts candidates, the preferred first; of equal ones the first stays first."""
    return -result.candidate.remaining, result.candidate.vocab


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
