"""Records of the benchmark of rivals in process."""

from __future__ import annotations

from pydantic import Field

from bertender.comparison.records import LatencyConfig, LatencyReport
from bertender.core.config import Record
from bertender.core.machine import Environment
from bertender.metrics.resampling import Score

__all__ = ["MeasuredModel", "RivalBenchmark", "RivalResults", "RivalRow"]


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
    """The measurements so far."""

    rows: tuple[RivalRow, ...] = Field(description="the first is the reference")
    absent: dict[str, str] = Field(
        description="name of a row -> why it was not measured to the end"
    )
    repetitions: tuple[LatencyReport, ...] = Field(description="in fresh processes each")

    def without(self, name: str, reason: str) -> RivalResults:
        """Return the results without a row, which is absent for this reason."""
        reports = [
            report.model_copy(
                update={"rows": tuple(row for row in report.rows if row.name != name)}
            )
            for report in self.repetitions
        ]
        return RivalResults(
            rows=tuple(row for row in self.rows if row.name != name),
            absent={**self.absent, name: reason},
            repetitions=tuple(reports),
        )


class MeasuredModel(Record):
    """An artifact that rivals open."""

    name: str
    digest: str
    kind: str
    precision: str


class RivalBenchmark(Record):
    """Every figure, and its conditions."""

    task: str
    n: int = Field(description="held-out texts, or pairs of them")
    of_pairs: bool = Field(False, description="examples are pairs of texts")
    max_length: int = Field(description="tokens at which every row cuts an example")
    models: tuple[MeasuredModel, ...]
    rivals: tuple[str, ...] = Field(description="rows of RIVALS that were asked for")
    config: LatencyConfig
    environment: Environment
    results: RivalResults | None = None

    @property
    def unit(self) -> str:
        """`pair` or `text`: the input of a prediction."""
        return "pair" if self.of_pairs else "text"

    @property
    def measured(self) -> RivalResults:
        """The results, which are there once the first row has predicted."""
        assert self.results is not None
        return self.results
