"""Records of the benchmark of servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from benchmarks.common.pinning import NOT_PINNED, Pins
from benchmarks.serving.texts import TextLengths
from bertender.core.config import Record
from bertender.core.machine import Environment
from bertender.core.machine_load import MachineLoad
from serve.loadtest import LONGEST_S, Limit, LoadRun, Outcome, texts_per_second

__all__ = [
    "CALLS",
    "LOADS",
    "Ceiling",
    "CeilingCell",
    "Load",
    "ServingBenchmark",
    "ServingConfig",
    "ServingLimit",
    "ServingRun",
    "ServingVisit",
]


@dataclass(frozen=True)
class Load:
    """A row of LOADS: so many clients that each wait for their response."""

    texts_per_request: int
    clients: int


LOADS: Mapping[str, Load] = {
    "one caller": Load(1, 1),
    "1 text a request": Load(1, 32),
    "16 texts a request": Load(16, 8),
}
CALLS = (1, 16, 64)
"""Texts of a call in process."""


class ServingConfig(Record):
    """How it is measured."""

    systems: tuple[str, ...] = Field((), description="rows of SYSTEMS; all that can run if none")
    rounds: int = 3
    duration_s: float = Field(1.5, description="of a load in a round, and of each call in process")
    warmup_s: float = 0.3
    longest_s: float = Field(LONGEST_S, description="of a load or a rate, where responses are slow")
    limits: bool = True
    slo_p99_ms: float = Field(
        50.0,
        description="p99 of the limits; on a workload whose single texts take the padded "
        "repository long, a multiple of its median latency",
    )
    limit_duration_s: float = Field(2.5, description="of each rate, where the limit is looked for")
    pins: Pins = NOT_PINNED
    seed: int = 0
    noisy: bool = False


class ServingRun(Record):
    """Results of a load."""

    load: str = Field(description="a row of LOADS")
    texts_per_second: float
    p50_ms: float | None = Field(description="of requests with a response; None where none has")
    p99_ms: float | None = Field(description="of all; None where more than 1 % have no response")
    outcomes: dict[Outcome, int]
    latency_ms: tuple[float, ...] = Field(description="raw")

    @classmethod
    def of_load(cls, name: str, run: LoadRun) -> ServingRun:
        return cls(
            load=name,
            texts_per_second=texts_per_second(run),
            p50_ms=run.latency.p50_ms if run.latency else None,
            p99_ms=run.p99_ms,
            outcomes=run.outcomes,
            latency_ms=run.latency_ms,
        )


class ServingVisit(Record):
    """A system, started once."""

    system: str = Field(description="a row of SYSTEMS")
    workload: str = Field(description="a row of WORKLOADS")
    round: int
    runs: tuple[ServingRun, ...] = Field(description="in the order of LOADS")
    load: MachineLoad

    def run(self, load: str) -> ServingRun:
        """Return the results of a load."""
        (run,) = (each for each in self.runs if each.load == load)
        return run


class CeilingCell(Record):
    """The model in process, at so many texts a call."""

    texts_per_call: int
    texts_per_second: float
    p50_ms: float


class Ceiling(Record):
    """The model in process, in a process of its own."""

    workload: str
    round: int
    cells: tuple[CeilingCell, ...]
    load: MachineLoad

    @property
    def texts_per_second(self) -> float:
        """The highest over all numbers of texts a call."""
        return max(cell.texts_per_second for cell in self.cells)

    @property
    def single_p50_ms(self) -> float:
        """Median latency of a call with one text."""
        return next(cell.p50_ms for cell in self.cells if cell.texts_per_call == 1)


class ServingLimit(Record):
    """The highest rate of single texts that holds the p99."""

    system: str
    workload: str
    slo_p99_ms: float = Field(description="the same for all systems of a workload")
    limit: Limit | None
    reason: str | None = Field(description="why there is none")
    load: MachineLoad


class ServingBenchmark(Record):
    """Every figure, and its conditions."""

    task: str
    name: str
    digest: str
    precision: str
    parameters: int
    config: ServingConfig
    workloads: dict[str, TextLengths]
    ceilings: tuple[Ceiling, ...] = ()
    visits: tuple[ServingVisit, ...] = ()
    limits: tuple[ServingLimit, ...] = ()
    left_out: dict[str, str] = Field(description="system -> the packages that it lacks")
    environment: Environment
