"""Records of a soak's raw file: settings and measurements."""

from __future__ import annotations

from pydantic import Field

from benchmarks.serving.records import ServingConfig
from bertender.core.config import Record
from bertender.core.machine import Environment
from bertender.core.machine_load import MachineLoad
from serve.loadtest import Limit, Outcome

__all__ = ["MemorySample", "Overload", "Segment", "SoakBenchmark", "SoakConfig"]


class SoakConfig(Record):
    """How it is measured."""

    limit: float | None = Field(None, description="requests a second; None: it is looked for")
    minutes: float = 10.0
    segment_s: float = Field(20.0, description="of requests between two readings of memory")
    share: float = Field(0.8, description="of the limit, for minutes")
    overload: float = Field(2.0, description="times the limit, after that")
    overload_s: float = 20.0
    queue_timeout_ms: float
    measured: ServingConfig = Field(description="of the limit, its p99, and the cores")


class MemorySample(Record):
    """Resident memory of the server's processes."""

    at_s: float = Field(description="from the first request of the soak on")
    bytes_of: dict[str, int] = Field(description="server, stub and supervisor")

    @property
    def total(self) -> int:
        return sum(self.bytes_of.values())


class Segment(Record):
    """Requests of the soak between two readings of memory."""

    p50_ms: float | None
    p99_ms: float | None = Field(description="of all; None where more than 1 % have no response")
    outcomes: dict[Outcome, int]
    lag_share: float = Field(description="how late requests were sent, over the median latency")


class Overload(Record):
    """Requests beyond the limit."""

    rate: float
    duration_s: float
    outcomes: dict[Outcome, int]
    within_slo: int = Field(description="requests with a response within the p99 that must hold")
    lag_share: float
    p50_ms: float | None = Field(None, description="of the responses")
    rejected_p50_ms: float | None = Field(None, description="how long a rejection took")
    rejected_p99_ms: float | None = None
    memory: MemorySample | None = Field(None, description="right after it")

    @property
    def goodput(self) -> float:
        """Responses a second within the p99 that must hold."""
        return self.within_slo / self.duration_s


class SoakBenchmark(Record):
    """A soak, and its conditions."""

    task: str
    name: str
    digest: str
    precision: str
    config: SoakConfig
    limit: Limit
    rate: float = Field(description="requests a second of the soak")
    memory: tuple[MemorySample, ...]
    segments: tuple[Segment, ...]
    overload: Overload
    default_overload: Overload | None = Field(None, description="of a server of default settings")
    load: MachineLoad
    environment: Environment

    @property
    def growth(self) -> float:
        """Growth of the memory from the second fifth of the soak to the last, as a share.

        The first fifth is left out: runtimes reserve memory at sizes that they see first then.
        """
        part = max(1, len(self.memory) // 5)
        return _median_total(self.memory[-part:]) / _median_total(self.memory[part : 2 * part]) - 1

    @property
    def goodput_share(self) -> float:
        """Goodput beyond the limit, as a share of the limit."""
        return self.overload.goodput / self.limit.rate

    @property
    def overload_growth(self) -> float | None:
        """Growth of the memory from the end of the soak to that of the overload, as a share."""
        after = self.overload.memory
        return None if after is None else after.total / self.memory[-1].total - 1


def _median_total(samples: tuple[MemorySample, ...]) -> float:
    totals = sorted(each.total for each in samples)
    return totals[len(totals) // 2]
