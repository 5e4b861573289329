"""Rounds of every server and of the ceiling, in turns; then the limits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.common.saving import save_benchmark
from benchmarks.serving.ceiling import time_in_process
from benchmarks.serving.loads import StartedSystem, started
from benchmarks.serving.prepared import PreparedTexts
from benchmarks.serving.records import (
    LOADS,
    Ceiling,
    ServingBenchmark,
    ServingLimit,
    ServingRun,
    ServingVisit,
)
from benchmarks.serving.systems import OWN, PADDED, SYSTEMS
from benchmarks.serving.undisturbed import undisturbed
from bertender.core.artifact import Artifact
from bertender.core.config import Record
from bertender.core.errors import ConfigError
from bertender.core.machine_load import LoadMeter, check_load
from bertender.core.progress import Bar, progress_bar
from serve.loadtest import FIRST_RATE

__all__ = ["LIMITED", "ServingMeasurement"]

ALONE, SATURATING = "one caller", "1 text a request"
"""Rows of LOADS: whose latency a p99 must leave room for, and whose throughput says where the
search of a limit begins."""

LATENCIES_OF_SLO = 3.0
LIMITED = (OWN, PADDED)
"""Systems whose limits are compared."""


class ServingMeasurement:
    """Rounds of every system and of the ceiling, in turns; then the limits.

    A round is in the result once all of it is measured: its parts are compared with each other.

    Args:
        artifact: what is served.
        workloads: name -> what is sent.
        begun: settings, and what was measured before.
        out: file that gets each round when it ends; None for none.

    Raises:
        ConfigError: a system of the settings cannot run here.
    """

    def __init__(
        self,
        artifact: Artifact,
        workloads: Mapping[str, PreparedTexts],
        begun: ServingBenchmark,
        out: Path | None,
    ) -> None:
        self.artifact = artifact
        self.workloads = workloads
        self.result = begun
        self.config = begun.config
        self.out = out
        self.systems = {
            workload: [
                name
                for name in begun.config.systems or SYSTEMS
                if not SYSTEMS[name].missing
                and SYSTEMS[name].is_another(prepared.service(artifact))
            ]
            for workload, prepared in workloads.items()
        }
        if unused := {*self.config.systems}.difference(*self.systems.values()):
            raise ConfigError(
                f"--systems {', '.join(sorted(unused))}: this runtime cannot open {artifact.path} "
                "here, or the texts are the same for another system. Leave it out; `bertender "
                "doctor` shows which runtimes are here."
            )

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to measure."""
        return not (self._rounds_left() or self._limits_left())

    def run(self) -> ServingBenchmark:
        """Measure what the result lacks.

        Raises:
            MachineBusyError: other work disturbs it, and the settings allow no noisy figures.
            ServingError: a server does not start.
            LoadTestError: one does not respond at all.
        """
        rounds, limits = self._rounds_left(), self._limits_left()
        visits = sum(len(self.systems[workload]) + 1 for _, workload in rounds)
        with progress_bar("serving", total=visits + len(limits)) as bar:
            for number, workload in rounds:
                bar.note(f"round {number + 1}: {workload}")
                self._round(workload, number, bar)
            for workload, system in limits:
                bar.note(f"limit of {system}: {workload}")
                limit = undisturbed(f"limit of {system}", partial(self._limit, system, workload))
                self._add(limits=(*self.result.limits, limit))
                bar.advance()
        return self.result

    def _rounds_left(self) -> list[tuple[int, str]]:
        measured = {(each.round, each.workload) for each in self.result.ceilings}
        every = product(range(self.config.rounds), self.workloads)
        return [each for each in every if each not in measured]

    def _limits_left(self) -> list[tuple[str, str]]:
        measured = {(each.workload, each.system) for each in self.result.limits}
        every = product(self.workloads, LIMITED if self.config.limits else ())
        return [each for each in every if each not in measured]

    def _round(self, workload: str, number: int, bar: Bar) -> None:
        draw = np.random.default_rng((self.config.seed, number, [*self.workloads].index(workload)))
        ceiling = undisturbed("the ceiling", partial(self._ceiling, workload, number))
        bar.advance()
        visits = []
        for system in draw.permutation(self.systems[workload]):
            visit = partial(self._visit, str(system), workload, number)
            visits.append(undisturbed(system, visit))
            bar.advance()
        self._add(ceilings=(*self.result.ceilings, ceiling), visits=(*self.result.visits, *visits))

    def _add(self, **measured: tuple[Record, ...]) -> None:
        self.result = self.result.model_copy(update=measured)
        if self.out is not None:
            save_benchmark(self.result, self.out)

    def _ceiling(self, workload: str, number: int) -> Ceiling:
        meter = LoadMeter()
        cells = time_in_process(
            self.artifact,
            self.workloads[workload].texts,
            self.config.duration_s,
            self.config.pins.server,
        )
        load = meter.stop()
        check_load(load, self.config.noisy)
        return Ceiling(workload=workload, round=number, cells=tuple(cells), load=load)

    def _visit(self, system: str, workload: str, number: int) -> ServingVisit:
        with self._started(system, workload) as asked:
            meter = LoadMeter()
            runs = [ServingRun.of_load(name, asked.closed(row)) for name, row in LOADS.items()]
            load = meter.stop()  # while the server is there: its time is not other work
        check_load(load, self.config.noisy)
        return ServingVisit(
            system=system, workload=workload, round=number, runs=tuple(runs), load=load
        )

    def _limit(self, system: str, workload: str) -> ServingLimit:
        with self._started(system, workload) as asked:
            meter = LoadMeter()
            slo_p99_ms = self._slo_p99_ms(workload)
            limit, reason = asked.limit(slo_p99_ms, self._first_rate(system, workload))
            load = meter.stop()
        check_load(load, self.config.noisy)
        return ServingLimit(
            system=system,
            workload=workload,
            slo_p99_ms=slo_p99_ms,
            limit=limit,
            reason=reason,
            load=load,
        )

    def _slo_p99_ms(self, workload: str) -> float:
        """Return a p99 that the padded repository can hold at some rate."""
        latencies = [
            p50_ms
            for visit in self.result.visits
            if (visit.system, visit.workload) == (PADDED, workload)
            if (p50_ms := visit.run(ALONE).p50_ms) is not None
        ]
        slowest = max(latencies, default=0.0)
        return max(self.config.slo_p99_ms, float(np.ceil(LATENCIES_OF_SLO * slowest)))

    def _first_rate(self, system: str, workload: str) -> float:
        """Return half of what clients without pauses reached: near the limit, and below it."""
        rates = [
            visit.run(SATURATING).texts_per_second
            for visit in self.result.visits
            if (visit.system, visit.workload) == (system, workload)
        ]
        return max(FIRST_RATE, float(np.median(rates)) / 2)

    def _started(self, system: str, workload: str) -> AbstractContextManager[StartedSystem]:
        own = self.workloads[workload]
        return started(SYSTEMS[system], own.service(self.artifact), own.texts, self.config)
