"""Records of the benchmark of rivals in process."""

from __future__ import annotations

from functools import cached_property

from pydantic import Field

from bertender.core.config import Record
from bertender.core.environment import Environment
from bertender.measure.latency import merged
from bertender.measure.latency_records import Latency, LatencyConfig, LatencyReport
from bertender.measure.samples import Speedup, speedup_over_processes
from bertender.metrics.records import Score

__all__ = ["MeasuredModel", "RivalBenchmark", "RivalResults", "RivalRow", "over", "over_in_batches"]


class RivalRow(Record):
    """A rival that opened an artifact, and what it predicts."""

    name: str = Field(description="`RIVAL`, or `RIVAL ARTIFACT` where it opens several")
    rival: str = Field(description="a row of RIVALS")
    artifact: str
    precision: str = Field(description="what it computes in, as it was asked to")
    versions: dict[str, str] = Field(description="of the rival's packages, in its environment")
    score: Score = Field(description="of its labels on the held-out texts")
    agreement: float = Field(description="share of the held-out texts with the first row's label")
    max_probability_difference: float = Field(description="from the first row, over all texts")


class RivalResults(Record):
    """What was measured so far."""

    rows: tuple[RivalRow, ...] = Field(description="the first is the reference")
    absent: dict[str, str] = Field(description="name of a row -> why it was not measured")
    repetitions: tuple[LatencyReport, ...] = Field(description="in fresh processes each")


class MeasuredModel(Record):
    """An artifact that rivals open."""

    name: str
    digest: str
    kind: str
    precision: str


class RivalBenchmark(Record):
    """Every figure, and its conditions."""

    task: str
    n: int = Field(description="held-out texts")
    max_length: int = Field(description="tokens at which every row cuts a text")
    models: tuple[MeasuredModel, ...]
    rivals: tuple[str, ...] = Field(description="rows of RIVALS that were asked for")
    config: LatencyConfig
    environment: Environment
    results: RivalResults | None = None

    @property
    def measured(self) -> RivalResults:
        """The results, which are there once the first row has predicted."""
        assert self.results is not None
        return self.results

    @cached_property
    def latency(self) -> dict[str, Latency]:
        """The times of each row over all repetitions, by name; `measured` has their order."""
        return {row.name: row for row in merged(self.measured.repetitions, self.config).rows}

    @property
    def noise_floor(self) -> Speedup:
        """How many times as fast as itself the first row is: what chance alone makes."""
        again = [
            rounds
            for report in self.measured.repetitions
            if report.noise_floor
            for rounds in report.noise_floor.single_ms
        ]
        return speedup_over_processes(
            self.latency[self.measured.rows[0].name].single_ms, again, self.config.seed
        )


def over(reference: Latency, row: Latency) -> Speedup:
    """Return how many times as fast as another a row is, one text at a time."""
    return speedup_over_processes(reference.single_ms, row.single_ms)


def over_in_batches(reference: Latency, row: Latency) -> Speedup:
    """Return how many times as fast as another a row is, in batches."""
    theirs, own = (
        [[(batch,) for batch in rounds] for rounds in each.batch_ms] for each in (reference, row)
    )
    return speedup_over_processes(theirs, own)
