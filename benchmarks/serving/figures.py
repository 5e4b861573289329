"""Figures of the benchmark of servers: of the ceiling, added by the server, at equal p99."""

from __future__ import annotations

import math
from collections.abc import Callable

from benchmarks.serving.records import (
    Ceiling,
    ServingBenchmark,
    ServingLimit,
    ServingRun,
    ServingVisit,
)
from benchmarks.serving.systems import OWN, PADDED
from bertender.core.machine import Speedup
from serve.tuning import mean_over_rounds, ratio_over_rounds

__all__ = ["ServingFigures"]


class ServingFigures:
    """Results of the rounds of a workload."""

    def __init__(self, result: ServingBenchmark, workload: str) -> None:
        self.result = result
        self.workload = workload

    def ceilings(self) -> list[Ceiling]:
        """Return the model in process, in the order of the rounds."""
        own = (each for each in self.result.ceilings if each.workload == self.workload)
        return sorted(own, key=lambda each: each.round)

    def ceiling(self) -> Speedup:
        """Return the texts/s of the model in process."""
        return mean_over_rounds([each.texts_per_second for each in self.ceilings()])

    def visits(self, system: str) -> list[ServingVisit]:
        """Return the visits of a system, in the order of the rounds; none where it is left out."""
        place = (system, self.workload)
        own = (each for each in self.result.visits if (each.system, each.workload) == place)
        return sorted(own, key=lambda each: each.round)

    def texts_per_second(self, system: str, load: str) -> Speedup:
        """Return the throughput of a load."""
        return mean_over_rounds(self._of_runs(system, load, lambda run: run.texts_per_second))

    def share_of_ceiling(self, system: str, load: str) -> Speedup:
        """Return the throughput of a load over that of the model in process, within rounds."""
        ceilings = [each.texts_per_second for each in self.ceilings()]
        return ratio_over_rounds(
            ceilings, self._of_runs(system, load, lambda run: run.texts_per_second)
        )

    def throughput_ratio(self, system: str, reference: str, load: str) -> Speedup:
        """Return the throughput of a system over that of a reference, within rounds."""
        theirs, ours = (
            self._of_runs(each, load, lambda run: run.texts_per_second)
            for each in (reference, system)
        )
        return ratio_over_rounds(theirs, ours)

    def latency_ratio(self, system: str, reference: str, load: str) -> Speedup:
        """Return the median latency of a reference over that of a system, within rounds."""
        theirs, ours = (self._of_runs(each, load, _p50_ms) for each in (reference, system))
        return ratio_over_rounds(ours, theirs)

    def p50_ms(self, system: str, load: str) -> Speedup:
        """Return the median latency of a load."""
        return mean_over_rounds(self._of_runs(system, load, _p50_ms))

    def added_ms(self, system: str, load: str) -> Speedup:
        """Return what a system adds to the median latency of a text in process, within rounds."""
        latencies = self._of_runs(system, load, _p50_ms)
        singles = [each.single_p50_ms for each in self.ceilings()]
        return mean_over_rounds(
            [asked - alone for asked, alone in zip(latencies, singles, strict=True)]
        )

    def limit(self, system: str) -> ServingLimit | None:
        """Return the highest rate that holds the p99; None where it was not looked for."""
        place = (system, self.workload)
        own = (each for each in self.result.limits if (each.system, each.workload) == place)
        return next(own, None)

    def against_padded(self) -> Speedup | None:
        """Return the limit over the padded repository's; its ends are those of both searches.

        None where either has no limit.
        """
        own, padded = self.limit(OWN), self.limit(PADDED)
        if not (own and padded and own.limit and padded.limit):
            return None
        ours, theirs = own.limit, padded.limit
        return Speedup(
            value=ours.rate / theirs.rate,
            low=ours.rate / theirs.above if theirs.above else 0.0,
            high=ours.above / theirs.rate if ours.above else math.inf,
        )

    def _of_runs(
        self, system: str, load: str, figure: Callable[[ServingRun], float]
    ) -> list[float]:
        return [figure(visit.run(load)) for visit in self.visits(system)]


def _p50_ms(run: ServingRun) -> float:
    return math.inf if run.p50_ms is None else run.p50_ms
