"""Records of a load test, raw samples included."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field

from bertender.core.config import Record
from bertender.core.environment import Environment
from bertender.core.machine_load import MachineLoad
from bertender.measure.samples import Percentiles
from serve.loadtest.config import LoadConfig

__all__ = ["OUTCOMES", "Limit", "LoadRun", "LoadTest", "Outcome"]

Outcome = Literal["ok", "rejected", "late", "failed"]
OUTCOMES: tuple[Outcome, ...] = ("ok", "rejected", "late", "failed")
"""A response; a rejection for now; none within the timeout; any other error."""


class LoadRun(Record):
    """What one rate, or one number of clients, gave."""

    rate: float | None = Field(description="open loop: requests a second; None in a closed loop")
    concurrency: int | None = Field(description="closed loop: clients; None in an open loop")
    texts_per_request: int
    duration_s: float
    outcomes: dict[Outcome, int] = Field(description="requests of the measured time, by outcome")
    latency: Percentiles | None = Field(
        description="of those that are ok, from the intended time to send; None where none is"
    )
    p99_ms: float | None = Field(
        description="of all requests, where those without a response last for ever; None: so do "
        "more than 1 %"
    )
    send_lag: Percentiles = Field(description="how late requests were sent, as latency contains it")
    requests_per_second: float = Field(description="responses within the measured time")
    intended_s: tuple[float, ...] = Field(description="raw: when to send, from the first request")
    lag_ms: tuple[float, ...] = Field(description="raw, in the same order")
    latency_ms: tuple[float, ...] = Field(description="raw, in the same order")
    outcome: tuple[Outcome, ...] = Field(description="raw, in the same order")

    @property
    def load(self) -> str:
        """The rate or the number of clients, in words."""
        return f"{self.rate:.4g} requests/s" if self.rate else f"{self.concurrency} clients"

    @property
    def texts_per_second(self) -> float:
        return self.requests_per_second * self.texts_per_request

    @property
    def lag_share(self) -> float:
        """The median send lag as a share of the median latency."""
        return self.send_lag.p50_ms / self.latency.p50_ms if self.latency else math.inf

    def holds(self, slo_p99_ms: float) -> bool:
        """Return whether the p99 of all requests is within a limit."""
        return self.p99_ms is not None and self.p99_ms <= slo_p99_ms


class Limit(Record):
    """The highest rate that holds a p99."""

    slo_p99_ms: float
    rate: float = Field(description="requests a second that hold it")
    above: float | None = Field(
        description="the next rate that was measured, which does not; None where none is known"
    )
    lower_bound: str | None = Field(
        None,
        description="why the search ended early, so that the limit may be higher; None where it "
        "did not",
    )


class LoadTest(Record):
    """A load test and its conditions."""

    protocol: str
    model: str = Field(description="digest of the served artifact")
    texts: int = Field(description="texts that requests are drawn from")
    config: LoadConfig
    runs: tuple[LoadRun, ...] = Field(description="in the order in which they were measured")
    limit: Limit | None = Field(description="None where it was not looked for")
    environment: Environment = Field(description="of the machine that sends, not of the server")
    load: MachineLoad = Field(
        description="just before the first request or after the last, the busier of the two: "
        "meanwhile, a server on the same machine is at work too"
    )
